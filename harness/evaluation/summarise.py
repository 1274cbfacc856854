"""The strongest attack decides: one row for all cells that differ only in the attack."""

from collections import defaultdict
from collections.abc import Iterable

from harness.results import AttackStanding, CellResult, Place, SummaryRow
from harness.scoring import Attempt, strongest


def summarise(cells: Iterable[CellResult]) -> list[SummaryRow]:
    """Summary rows of the cells that were asked for, in their order; controls are left out."""
    places: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.role == "cell":
            places[_place(cell).model_dump_json()].append(cell)
    return [_row(members) for members in places.values()]


def _place(cell: CellResult) -> Place:
    return Place(**{name: getattr(cell, name) for name in Place.model_fields})


def _row(cells: list[CellResult]) -> SummaryRow:
    decision = strongest([_attempt(cell) for cell in cells if cell.not_applicable_reason is None])
    return SummaryRow(
        **_place(cells[0]).model_dump(),
        verdict=decision.verdict,
        verdict_reason=decision.reason,
        strongest=decision.attack,
        attacks=[_standing(cell) for cell in cells],
    )


def _attempt(cell: CellResult) -> Attempt:
    return Attempt(
        cell.attack, cell.verdict, _obstacle(cell), cell.confirmed, cell.outcomes.success, cell.victims,
        cell.lineup.p_value,
    )  # fmt: skip


def _standing(cell: CellResult) -> AttackStanding:
    obstacle = _obstacle(cell)
    return AttackStanding(
        attack=cell.attack, cell=cell.key, verdict=cell.verdict, informative=obstacle is None, reason=obstacle
    )


def _obstacle(cell: CellResult) -> str | None:
    """Why the cell's attack is not known to work there, None where it is."""
    if cell.not_applicable_reason is not None:
        return cell.not_applicable_reason
    positive = [check for check in cell.controls if check.name.startswith("positive")]
    if not positive:
        return "no positive control was run"
    return next((check.detail or f"{check.name} failed" for check in positive if not check.held), None)
