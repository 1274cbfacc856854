"""Whether a run may be used at all: one rule for its document, its page and its exit code."""

from collections.abc import Sequence

from harness.results import CellResult


def took_steps(cell: CellResult) -> bool:
    """Whether any optimizer moved: the first gradient evaluation only looks."""
    evaluations = cell.metrics.get("gradient_evaluations")
    return evaluations is not None and evaluations.mean is not None and evaluations.mean > 1


def _shows_something(cell: CellResult) -> bool:
    return cell.not_applicable_reason is None if cell.control == "blind" else took_steps(cell)


def fault_of(cells: Sequence[CellResult]) -> str | None:
    """Why the verdicts of a run with these cells must not be used, None where they may.

    A negative control leaked, or no cell that was asked for could be evaluated. A control in which no optimizer step
    was taken shows nothing, neither a leak: it leaves the cells that depend on it inconclusive, and the run valid. Only
    the control ``blind`` takes none and still shows something, if it could be made.
    """
    idle = {cell.key for cell in cells if cell.role == "control" and not _shows_something(cell)}
    for cell in cells:
        for check in cell.controls:
            if check.kind == "negative" and not check.held and idle.isdisjoint(check.cells):
                where = f"{cell.attack} against {cell.defense} at {cell.tap}"
                return f"negative control {check.name} failed for {where} ({check.detail})"
    asked = [cell for cell in cells if cell.role == "cell"]
    if asked and all(cell.not_applicable_reason for cell in asked):
        return f"no cell could be evaluated: {asked[0].not_applicable_reason}"
    return None
