"""The strongest attack decides: one row for all cells that differ only in the attack."""

from collections import defaultdict
from collections.abc import Iterable

from harness.results import AttackStanding, CellResult, Place, SummaryRow
from harness.results.record import BLIND, TIERS, TierWord
from harness.scoring.headline import headline
from harness.scoring.strongest import Attempt, strongest
from harness.scoring.verdict import within_networks

_PLACE = set(Place.model_fields)


def summarise(cells: Iterable[CellResult]) -> list[SummaryRow]:
    """Summary rows of the cells that were asked for, in their order; controls are left out."""
    places: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.role == "cell":
            places[cell.model_dump_json(include=_PLACE)].append(cell)
    return [_row(members) for members in places.values()]


def _row(cells: list[CellResult]) -> SummaryRow:
    possible = [cell for cell in cells if cell.not_applicable_reason is None]
    identified = [cell.identified.identifies for cell in possible if cell.identified is not None]
    told = _told(cells)
    attempts, noisy = [_attempt(cell, cell.key in told) for cell in possible], any(cell.noise for cell in possible)
    refused = [(_attempt(cell, False), cell.not_applicable_reason) for cell in cells if cell.not_applicable_reason]
    examples = max(cell.hidden for cell in cells)
    suite = next((cell.suite for cell in cells if cell.suite), None)
    decision = strongest(attempts, noisy, suite is not None, examples, refused)
    reason = decision.reason
    if cells[0].shared_weights:
        reason = within_networks(reason, decision.verdict, len(cells[0].seeds))
    return SummaryRow(
        **cells[0].model_dump(include=_PLACE),
        verdict=decision.verdict,
        verdict_reason=reason,
        strongest=decision.attack,
        tier=_highest(cell.tier for cell in possible if cell.attack != BLIND),
        suite=suite,
        headline=headline(decision.verdict, attempts, noisy),
        identifies=any(identified) if identified else None,
        attacks=[_standing(cell, cell.key in told) for cell in cells],
    )


def _highest(tiers: Iterable[TierWord]) -> TierWord:
    return TIERS[max((TIERS.index(tier) for tier in tiers), default=0)]


def _told(cells: Iterable[CellResult]) -> set[str]:
    """The keys of second runs, in which labels are known."""
    return {cell.told for cell in cells if cell.told}


def _attempt(cell: CellResult, told: bool) -> Attempt:
    return Attempt(
        cell.attack, cell.verdict, _obstacle(cell), cell.confirmed, cell.outcomes.success, cell.victims, cell.lineup,
        None if cell.identified is None else cell.identified.identifies, cell.tier != "plain",
        tuple(cell.flags), cell.tier == "tampering", cell.several, told, cell.identified,
    )  # fmt: skip


def _standing(cell: CellResult, told: bool) -> AttackStanding:
    obstacle = _obstacle(cell)
    return AttackStanding(
        attack=cell.attack, cell=cell.key, tier=cell.tier, verdict=cell.verdict, informative=obstacle is None,
        reason=obstacle, identifies=None if cell.identified is None else cell.identified.identifies,
        flags=cell.flags, told=told,
    )  # fmt: skip


def _obstacle(cell: CellResult) -> str | None:
    """Why the cell's attack is not known to work there, None where it is."""
    if cell.not_applicable_reason is not None:
        return cell.not_applicable_reason
    positive = [check for check in cell.controls if check.kind == "positive"]
    if not positive:
        return "no positive control was run"
    return next((check.detail or f"{check.name} failed" for check in positive if not check.held), None)
