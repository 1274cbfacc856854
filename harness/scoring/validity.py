"""Whether a run may be used at all: one rule for its document, its page and its exit code."""

from collections.abc import Sequence

from harness.results import CellResult

#: Chance at most that any of a run's theorems looks contradicted while all of them hold.
CONTRADICTION_P = 1e-4


def took_steps(cell: CellResult) -> bool:
    """Whether any optimizer moved: the first gradient evaluation only looks."""
    evaluations = cell.metrics.get("gradient_evaluations")
    return evaluations is not None and evaluations.mean is not None and evaluations.mean > 1


def _shows_something(cell: CellResult) -> bool:
    return cell.not_applicable_reason is None if cell.control == "blind" else took_steps(cell)


def fault_of(cells: Sequence[CellResult]) -> str | None:
    """Why the verdicts of a run with these cells must not be used, None where they may.

    A negative control leaked, an attacker did what a theorem rules out, or no cell that was asked for could be
    evaluated. A control in which no optimizer step was taken shows nothing, neither a leak: it leaves the cells that
    depend on it inconclusive, and the run valid. Only the control ``blind`` takes none and still shows something, if it
    could be made.
    """
    idle = {cell.key for cell in cells if cell.role == "control" and not _shows_something(cell)}
    for cell in cells:
        for check in cell.controls:
            if check.kind == "negative" and not check.held and idle.isdisjoint(check.cells):
                where = f"{cell.attack} against {cell.defense} at {cell.tap}"
                return f"negative control {check.name} failed for {where} ({check.detail})"
    if impossible := _contradiction(cells):
        return impossible
    asked = [cell for cell in cells if cell.role == "cell"]
    if asked and all(cell.not_applicable_reason for cell in asked):
        return f"no cell could be evaluated: {asked[0].not_applicable_reason}"
    return None


def _contradiction(cells: Sequence[CellResult]) -> str | None:
    """The event that is least probable under its theorem, where it is too improbable for so many (Holm 1979)."""
    bounds = [(cell, cell.bound) for cell in cells if cell.bound is not None]
    found = [
        (event.p_value, event, cell, bound)
        for cell, bound in bounds
        for event in bound.events
        if event.p_value is not None
    ]
    if not found:
        return None
    p_value, event, cell, bound = min(found, key=lambda one: one[0])
    if p_value >= CONTRADICTION_P / len(found):
        return None
    return (
        f"{cell.attack} against {cell.defense} at {cell.tap} did what no attacker can: {event.event} "
        f"{event.measured.successes} of {event.measured.n} times, where {bound.theorem} allows "
        f"a share of {event.ceiling:.3g} (p = {p_value:.2g}); the noise or the clip is not what {cell.defense} declares"
    )
