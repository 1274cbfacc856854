"""Which cell of a run is which cell of the baseline, and which have no partner."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.gate.cells import GateCell
from harness.gate.settings import differences


@dataclass(frozen=True)
class Matching:
    """Pairs (old, new) of equal settings; pairs of one place but other settings, with what differs; and the rest."""

    same: list[tuple[GateCell, GateCell]]
    other_settings: list[tuple[GateCell, GateCell, list[str]]]
    missing: list[GateCell]
    extra: list[GateCell]


def match_cells(old: Sequence[GateCell], new: Sequence[GateCell]) -> Matching:
    """Pair cells with equal settings first, then, place by place, those that differ in the fewest settings."""
    matching = Matching([], [], list(old), list(new))
    candidates = [
        (differences(before.settings, after.settings), before, after)
        for before in old
        for after in new
        if before.place == after.place
    ]
    for changed, before, after in sorted(candidates, key=lambda candidate: len(candidate[0])):
        if not (_holds(matching.missing, before) and _holds(matching.extra, after)):
            continue
        _drop(matching.missing, before)
        _drop(matching.extra, after)
        if changed:
            matching.other_settings.append((before, after, changed))
        else:
            matching.same.append((before, after))
    return matching


# Cells are told apart by identity: comparing them would compare all their victims.
def _holds(cells: list[GateCell], one: GateCell) -> bool:
    return any(cell is one for cell in cells)


def _drop(cells: list[GateCell], one: GateCell) -> None:
    cells[:] = [cell for cell in cells if cell is not one]
