"""Makes a card again from its own settings, and says what differs from it.

Every field is compared; where versions differ, and on GPUs, victims are compared statistically.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.base.devices import choose_device, use_threads
from harness.base.errors import UsageError
from harness.base.version import SCHEMA_VERSION
from harness.board.making import make_card
from harness.board.reading import cells_of
from harness.evaluation import Run, document_of
from harness.evaluation.derived import verdict_of
from harness.evaluation.run import with_controls, with_told
from harness.gate import GateCell, Victim, as_baseline, check
from harness.gate.comparing import Tolerance, differing, other_versions
from harness.gate.settings import effective
from harness.reports.html.run_data import RunData
from harness.results import CellResult, Control, Place, Rate, RunFolder, StoredCell, Summary
from harness.results.card import Card, CardCell
from harness.results.environment import environment
from harness.results.record import Bound
from harness.scoring.success import clopper_pearson
from harness.scoring.summarise import summarise
from harness.training import TrainDocument, TrainFolder, TrainOptions, train, train_settings

_OTHERWISE_ROUNDED, _OTHERWISE_DRAWN = 2.0, 4.0  # standard errors
_MOVED = ("regression", "broken attack", "stronger attack", "more resilient", "missing", "extra")
_PLACE = set(Place.model_fields)
_OF_A_ROW = _PLACE | {"tier", "suite", "verdict", "headline", "identifies"}
_NUMBER = re.compile(r"\d[\d.,e+-]*")


@dataclass(frozen=True)
class Comparison:
    """``differences`` in words, none where the card is confirmed; ``notes``: how it was compared, and why."""

    differences: list[str]
    exact: bool
    notes: list[str] = field(default_factory=list)


def compare(card: Card, again: Card, statistically: bool = False) -> Comparison:
    """A card beside the same made again.

    Where both were made with the same versions on the same kind of processor, everything must be equal. Where not, on
    a GPU, or if asked for, what draws noise is compared as ``harness check`` compares runs. All else must be equal.
    """
    other = [
        f"{name} {card.environment.get(name)} there, {again.environment.get(name)} here"
        for name in ("machine", "processor", "device", "threads")
        if card.environment.get(name) != again.environment.get(name)
    ]
    other += [
        f"{name} {there} there, {here} here"
        for name, there, here in other_versions(card.environment.get("versions"), again.environment.get("versions"))
    ]
    if not other and again.environment.get("device") not in (None, "cpu"):
        other.append("a GPU adds up in another order each time")
    if not other and not statistically:
        found = differing(card.model_dump(mode="json"), again.model_dump(mode="json"))
        rounded = ["the same but for percentages in sentences, which are rounded up now"] if found else []
        found = [one for one in found if not one.startswith("hash:")]
        return Comparison(found, exact=True, notes=[] if found else rounded)
    why = "; ".join(other) if other else "it was asked for"
    # Another processor alone draws the same numbers, and rounds them otherwise.
    alike = bool(other) and not _draws_otherwise(card, again)
    tolerance = Tolerance(_OTHERWISE_ROUNDED if alike else _OTHERWISE_DRAWN)
    return Comparison(
        [*differing(_settled(card), _settled(again)), *_contradictions(card), *_moved(card, again),
         *tolerance.exceeded(card, again), *_reasons(card, again, alike)],
        exact=False,
        notes=[f"compared statistically, as harness check does: {why}"],
    )  # fmt: skip


def _draws_otherwise(card: Card, again: Card) -> bool:
    return any(card.environment.get(name) != again.environment.get(name) for name in ("versions", "device"))


def _moved(card: Card, again: Card) -> Iterator[str]:
    """Victims that moved by more than the gate lets pass, in either direction."""
    before, after = ([_gate_cell(one) for one in side.cells if one.victims.names] for side in (card, again))
    try:
        report = check(as_baseline(before, {}), after, {})
    except UsageError as problem:
        yield f"victims: nothing can be compared ({problem})"
        return
    for finding in report.findings:
        if finding.kind in _MOVED or finding.kind == "incomparable":
            yield f"victims: {finding.kind}: {finding.cell} {finding.detail}".rstrip()


def _reasons(card: Card, again: Card, alike: bool) -> Iterator[str]:
    """An attack's verdict, which other draws may leave undecided, and for the same one the same reason."""
    for number, (one, other) in enumerate(zip(card.cells, again.cells, strict=False)):
        said, found = (side.result.verdict_reason for side in (one, other))
        verdicts = one.result.verdict, other.result.verdict
        if len(set(verdicts)) == 2 and (alike or "inconclusive" not in verdicts):
            yield f"cells[{number}].verdict: {verdicts[0]} in the card, {verdicts[1]} computed again"
        if len(set(verdicts)) == 1 and _without_numbers(said) != _without_numbers(found):
            yield f"cells[{number}].verdict_reason: {said} in the card, {found} computed again"


def _gate_cell(one: CardCell) -> GateCell:
    numbers = zip(one.victims.names, one.victims.ranks, one.victims.rmses, one.victims.successes, strict=True)
    stored = StoredCell(schema_version=SCHEMA_VERSION, settings=one.settings, cell=one.result, victims=[])
    return GateCell(
        effective(stored),
        {name: Victim(rank=rank, rmse=rmse or 1.0, success=success) for name, rank, rmse, success in numbers},
    )


def _settled(card: Card) -> Any:
    """Return what comes out alike whatever is drawn, and what is read first: verdict, headline, tiers."""
    return _rounded({
        "status": card.status, "reason": card.reason, "command": card.command,
        "reported": card.reported and card.reported.model_dump(),
        # Until version 0.1.5 cards did not say which processor they were made on.
        "environment": sorted({*card.environment} - {"processor"}),
        "row": card.row.model_dump(mode="json", include=_OF_A_ROW),
        "statement": card.statement and asdict(card.statement),
        "cells": [_of_a_cell(one) for one in card.cells],
        "training": card.training and card.training.model_dump(mode="json", exclude={"accuracy"}),
    })  # fmt: skip


def _of_a_cell(one: CardCell) -> dict[str, Any]:
    cell, bound = one.result, one.result.bound
    return {
        "place": cell.model_dump(mode="json", include=_PLACE), "attack": cell.attack, "tier": cell.tier,
        "noise": cell.noise, "impossible": cell.not_applicable_reason, "suite": cell.suite,
        "warnings": [_without_numbers(said) for said in cell.warnings],
        "units": cell.units, "victims": one.victims.names,
        "trials": [rate.n for rate in cell.asr.values()], "identified": cell.identified and cell.identified.n,
        "controls": [_of_a_control(control) for control in cell.controls],
        "theorem": bound and bound.theorem, "mu": bound and bound.mu,
        "kappas": [event.kappa for event in bound.events] if bound else [],
        "ceilings": [(event.ceiling, event.says_little) for event in bound.events] if bound else [],
        "measured": [(event.event, event.measured.n) for event in bound.events] if bound else [],
        "privacy": [asdict(statement) for statement in cell.privacy],
    }  # fmt: skip


def _of_a_control(control: Control) -> dict[str, Any]:
    # A negative control is drawn again where its first draw leaked by chance, which its words tell.
    said = _without_numbers(control.detail or "") if control.kind == "positive" else ""
    return {"name": control.name, "held": control.held, "detail": said, "by chance": control.by_luck is not None}


def _without_numbers(said: str) -> str:
    return _NUMBER.sub("a number", said)


def _contradictions(card: Card) -> Iterator[str]:
    """Yield a line where the row is not that of the card's own cells, or an interval is not that of its own
    successes."""
    said = summarise(one.result for one in card.cells)
    yield from (
        f"{line.removesuffix('computed again')}by the card's own cells"
        for line in differing([card.row.model_dump(mode="json")], [one.model_dump(mode="json") for one in said], "row")
    )
    for number, one in enumerate(card.cells):
        cell = one.result
        strict = cell.asr.get("strict")
        alone = None if cell.shared_weights else len(one.victims.names)
        if strict is None or strict.n != alone:  # several images of a victim
            alone = None
        yield from (f"cells[{number}].result.{line}" for line in (*_of_its_victims(one), *_impossible(cell)))
        if cell.not_applicable_reason is None and (today := verdict_of(cell).verdict) != cell.verdict:
            yield f"cells[{number}].result.verdict: {cell.verdict} in the card, {today} by the cell's own numbers"
        events = {event.event: event.measured for event in cell.bound.events} if cell.bound else {}
        for name, rate in (cell.asr | events).items():
            if not _fits(rate, rate.n == alone):
                told = f"rate and interval of {name} are not those of {rate.successes} successes of {rate.n}"
                yield f"cells[{number}].result: {told}"


def _of_its_victims(one: CardCell) -> Iterator[str]:
    """Yield a line where an interval, a share or a mean rank is not that of the cell's victims, if each of these has
    one image."""
    cell, victims = one.result, one.victims
    strict, said = cell.asr.get("strict"), cell.identified or cell.lineup
    trials = cell.identified.n if cell.identified else strict.n if strict else 0
    ranks = [rank for rank in victims.ranks if rank is not None]
    if not trials or trials != len(victims.names):
        return
    for name, summary in cell.metrics.items():
        if not _is_wide(summary, trials):
            yield f"metrics.{name}: the interval is not that of such a mean and deviation of {trials}"
    told = cell.identified
    if told and told.rate is not None:
        counted = Rate(rate=told.rate, successes=round(told.rate * told.n), n=told.n, ci95=told.ci95)
        if not _fits(counted, independent=True):
            yield f"identified: rate and interval are not those of {counted.successes} of {told.n}"
    if strict and abs(strict.successes - sum(victims.successes)) > 0.5:
        yield f"asr.strict: {strict.successes} successes beside {sum(victims.successes):g} of its own victims"
    if ranks and abs((said.mean_rank or 0.0) - sum(ranks) / len(ranks)) > 1e-3:
        yield f"mean_rank: {said.mean_rank} beside {sum(ranks) / len(ranks):.4f} of its own victims"


def _impossible(cell: CellResult) -> Iterator[str]:
    """Yield a line for counts and chances that no cell can have."""
    counted, strict = sum(cell.outcomes.model_dump().values()), cell.asr.get("strict")
    if counted != cell.victims:
        yield f"outcomes: of {counted} victims, but it has {cell.victims}"
    if cell.confirmed > (strict.successes if strict else 0):
        yield f"{cell.confirmed} accurate and nearest beside {strict.successes if strict else 0} successes"
    tests = [cell.lineup, cell.label, *([cell.identified] if cell.identified else []), *(cell.bound or Bound()).events]
    chances = [one.p_value for one in tests] + [cell.lineup.confirmed_p_value]
    yield from (f"p_value: {one:g} is no chance" for one in chances if one is not None and not 0 <= one <= 1)


def _is_wide(summary: Summary, rows: int) -> bool:
    """Return whether the interval lies around the mean, as wide at least as the deviation of so many makes it."""
    low, high = summary.ci95 or (None, None)
    if low is None or high is None or summary.mean is None or not rows:
        return True
    rounding = 1e-6 * max(1.0, abs(summary.mean))
    width = max(0.0, 1.9 * (summary.std or 0.0) / rows**0.5 - rounding)
    return low <= summary.mean - width and high >= summary.mean + width


def _fits(rate: Rate, independent: bool) -> bool:
    """Return whether rate and interval are those of the successes; of trials that share a fate whether they may be."""
    low, high = rate.ci95 or (None, None)
    if not rate.n or rate.rate is None or low is None or high is None:
        return not rate.successes
    if abs(rate.rate - rate.successes / rate.n) > 1e-6 or not low <= rate.rate <= high:
        return False
    least = clopper_pearson(rate.successes, rate.n)
    if independent:
        return max(abs(low - least[0]), abs(high - least[1])) < 1e-6
    return low <= least[0] + 1e-6 and high >= least[1] - 1e-6


def _rounded(value: Any) -> Any:
    """Return the value with six digits of every number that is not whole."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Workspace:
    """Folder where data lie, and a folder for what is made. With ``resume``, what lies there already is believed."""

    data_root: Path
    scratch: Path
    chunk: int = 128
    resume: bool = False


def rebuild(card: Card, place: Workspace) -> Card:
    """The card as it comes out here, computed with as many threads as it says.

    Raises:
        UsageError: its settings are impossible, its data are not at hand.
    """
    threads = card.environment.get("threads")
    if card.environment.get("device") == "cpu" and isinstance(threads, int):
        use_threads(threads)
    device = "cpu" if card.environment.get("device") == "cpu" else choose_device("auto")
    asked = [one.model_copy(update={"device": device}) for one in cells_of(card)]
    run = Run(place.data_root, RunFolder(place.scratch), place.chunk, resume=place.resume, settles=True)
    # What the card skips is skipped again where it is settled again; all else is made.
    skipped = {one.result.attack for one in card.cells if one.result.settled_by}
    stored = with_told([run.asked(settings, settings.attack in skipped) for settings in asked], run.done)
    made = [one.cell for one in with_controls(stored, run.done)]
    where = environment(device)
    document = document_of(made, where)
    own = RunData("again", place.scratch, settings={one.cell.key or "": one.settings for one in stored})
    return make_card(stored, where, document.valid_reason, _train(card, device, place), own)


def _train(card: Card, device: str, place: Workspace) -> TrainDocument | None:
    if card.training is None:
        return None
    settings = train_settings(**card.training.settings | {"device": device})
    folder = TrainFolder(place.scratch / "training")
    return train(settings, place.data_root, folder, TrainOptions(evaluate_every=settings.rounds, resume=place.resume))
