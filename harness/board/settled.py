"""What no draw of noise changes in a card, and what its own numbers have to say of each other."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.results import Control, Place, Rate, Summary
from harness.results.card import Card, CardCell
from harness.scoring.derived import verdict_of
from harness.scoring.success import clopper_pearson
from harness.scoring.summarise import summarise

_PLACE = set(Place.model_fields)
_OF_A_ROW = _PLACE | {"tier", "suite", "verdict", "headline", "identifies"}
_NUMBER = re.compile(r"\d[\d.,e+-]*")


def differing(there: Any, here: Any, place: str = "") -> list[str]:
    """Every place where two documents differ, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = dict.fromkeys([*there, *here])
        return [
            line
            for name in names
            for line in differing(there.get(name), here.get(name), f"{place}.{name}" if place else name)
        ]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        return [
            line
            for number, (one, other) in enumerate(zip(there, here, strict=True))
            for line in differing(one, other, f"{place}[{number}]")
        ]
    return [] if there == here else [f"{place}: {_short(there)}in the card, {_short(here)} computed again"]


def _short(value: Any) -> str:
    said = f"{len(value)} entries" if isinstance(value, list | dict) and len(str(value)) > 80 else str(value)
    return " ".join(said.split())[:160]


def settled(card: Card) -> Any:
    """What comes out alike whatever is drawn, and what is read first: verdict, headline, tiers."""
    return _rounded({
        "status": card.status, "reported": card.reported and card.reported.model_dump(), "command": card.command,
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
        "warnings": [without_numbers(said) for said in cell.warnings],
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
    # A negative control is drawn again where its first draw was unlucky, which its words tell.
    said = without_numbers(control.detail or "") if control.kind == "positive" else ""
    return {"name": control.name, "held": control.held, "detail": said, "by luck": control.by_luck is not None}


def without_numbers(said: str) -> str:
    return _NUMBER.sub("a number", said)


def contradictions(card: Card) -> Iterator[str]:
    """Where the row is not that of the card's own cells, or an interval not that of its own successes."""
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
        yield from (f"cells[{number}].result.{line}" for line in _of_its_victims(one))
        if cell.not_applicable_reason is None and (today := verdict_of(cell).verdict) != cell.verdict:
            yield f"cells[{number}].result.verdict: {cell.verdict} in the card, {today} by the cell's own numbers"
        events = {event.event: event.measured for event in cell.bound.events} if cell.bound else {}
        for name, rate in (cell.asr | events).items():
            if not _fits(rate, rate.n == alone):
                told = f"rate and interval of {name} are not those of {rate.successes} successes of {rate.n}"
                yield f"cells[{number}].result: {told}"


def _of_its_victims(one: CardCell) -> Iterator[str]:
    """Where, of victims of one image each, an interval, a share or a mean rank is not that of such victims."""
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


def _is_wide(summary: Summary, rows: int) -> bool:
    """Whether the interval lies around the mean, as wide at least as the deviation of so many makes it."""
    low, high = summary.ci95 or (None, None)
    if low is None or high is None or summary.mean is None or not rows:
        return True
    rounding = 1e-6 * max(1.0, abs(summary.mean))
    width = max(0.0, 1.9 * (summary.std or 0.0) / rows**0.5 - rounding)
    return low <= summary.mean - width and high >= summary.mean + width


def _fits(rate: Rate, independent: bool) -> bool:
    """Whether rate and interval are those of the successes; of trials that share a fate whether they may be."""
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
    """The same with six digits of every number that is not whole."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
