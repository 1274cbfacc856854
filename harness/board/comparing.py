"""What differs between a card and the same made again: every field, or victims statistically where versions differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.base.errors import UsageError
from harness.board.luck import Luck
from harness.board.settled import contradictions, differing, settled, without_numbers
from harness.gate import GateCell, Victim, as_baseline, check
from harness.gate.settings import effective
from harness.results import StoredCell
from harness.results.card import Card, CardCell
from harness.version import SCHEMA_VERSION

_OTHERWISE_ROUNDED, _OTHERWISE_DRAWN = 2.0, 4.0  # standard errors
_MOVED = ("regression", "broken attack", "stronger attack", "more resilient", "missing", "extra")


@dataclass(frozen=True)
class Comparison:
    """``differences`` in words, none where the card is confirmed; ``notes``: how it was compared, and why."""

    differences: list[str]
    exact: bool
    notes: list[str] = field(default_factory=list)


def compare(card: Card, again: Card, statistically: bool = False) -> Comparison:
    """A card beside the same made again.

    Where both were made with the same versions on the same kind of processor, everything must be equal. Where not, or
    if asked for, what draws noise is compared as ``harness check`` compares runs; all else must be equal still.
    """
    other = [
        f"{name} {card.environment.get(name)} there, {again.environment.get(name)} here"
        for name in ("machine", "processor", "device", "threads")
        if card.environment.get(name) != again.environment.get(name)
    ]
    other += _other_versions(card.environment.get("versions"), again.environment.get("versions"))
    if not other and not statistically:
        found = differing(card.model_dump(mode="json"), again.model_dump(mode="json"))
        return Comparison([one for one in found if not one.startswith("hash:")], exact=True)
    why = "; ".join(other) if other else "it was asked for"
    # Another processor alone draws the same numbers, and rounds them otherwise.
    alike = bool(other) and not _draws_otherwise(card, again)
    luck = Luck(_OTHERWISE_ROUNDED if alike else _OTHERWISE_DRAWN)
    return Comparison(
        [*differing(settled(card), settled(again)), *contradictions(card), *_moved(card, again),
         *luck.exceeded(card, again), *_reasons(card, again, alike)],
        exact=False,
        notes=[f"compared statistically, as harness check does: {why}"],
    )  # fmt: skip


def _draws_otherwise(card: Card, again: Card) -> bool:
    return any(card.environment.get(name) != again.environment.get(name) for name in ("versions", "device"))


def _other_versions(there: Any, here: Any) -> list[str]:
    """Which libraries differ at all: the last bits may."""
    before, after = (one if isinstance(one, Mapping) else {} for one in (there, here))
    names = dict.fromkeys([*before, *after])
    return [
        f"{name} {before.get(name)} there, {after.get(name)} here"
        for name in names
        if before.get(name) != after.get(name)
    ]


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
            yield f"cells[{number}].verdict: {verdicts[0]}in the card, {verdicts[1]} computed again"
        if len(set(verdicts)) == 1 and without_numbers(said) != without_numbers(found):
            yield f"cells[{number}].verdict_reason: {said}in the card, {found} computed again"


def _gate_cell(one: CardCell) -> GateCell:
    numbers = zip(one.victims.names, one.victims.ranks, one.victims.rmses, one.victims.successes, strict=True)
    stored = StoredCell(schema_version=SCHEMA_VERSION, settings=one.settings, cell=one.result, victims=[])
    return GateCell(
        effective(stored),
        {name: Victim(rank=rank, rmse=rmse or 1.0, success=success) for name, rank, rmse, success in numbers},
    )
