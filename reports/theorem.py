"""The theorem beside the verdict, in words: what was measured, what is blind luck, and what no attacker can exceed."""

from harness.reports import text
from harness.results import Bound, Ceiling, CellResult


def event_of(cell: CellResult, name: str) -> Ceiling | None:
    """The cell's event of that name; None in documents that are older than theorems."""
    events = cell.bound.events if cell.bound else []
    return next((event for event in events if event.event == name), None)


def at_most(bound: Bound | None, event: Ceiling | None) -> str:
    """The ceiling, or why there is none; an empty string in older documents."""
    if bound is None or event is None:
        return ""
    if bound.theorem is None:
        return f"no bound exists: {text.safe(bound.reason or 'no reason recorded', 200)}"
    if event.ceiling is None:
        return f"not known: {text.safe(event.reason or 'no reason recorded', 200)}"
    return f"at most {text.percent(event.ceiling)}{' (says little)' * event.says_little}"


def blind(event: Ceiling | None) -> str:
    """What the best guess without the observation reaches."""
    return text.MISSING if event is None else text.percent(event.kappa)


def first_in_lineup(cell: CellResult) -> str:
    """How often truths are first in their lineup, blindly too, and what the theorem allows."""
    event = event_of(cell, "first in its lineup")
    if event is None:
        return text.MISSING
    if event.measured.rate is None:
        return f"not known: {text.safe(event.reason or 'no reason recorded', 200)}"
    return f"{text.rate(event.measured)}; blind {blind(event)}; {at_most(cell.bound, event)}"
