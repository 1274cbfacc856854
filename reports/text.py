"""Values of a result document as short, plain words. What a document holds is data, never markup or control codes."""

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from harness.base import presence
from harness.base.errors import UsageError, safe
from harness.experiment import usual_defense
from harness.results import Bound, Ceiling, CellResult, Rate, Statement, Summary, SummaryRow
from harness.results.record import without_non_finite

MISSING = "n/a"
#: Above it an epsilon promises nothing: any outcome may become e^10, 22,000 times, as likely.
MOST_EPSILON = 10.0
#: The smallest that a logarithmic axis shows: 0, which promises all, stands there too.
LEAST_EPSILON = 1e-3
_UNKNOWN = object()
_LONGEST_ARGUMENTS = 240
_WAS_FIT = re.compile(r"no (\w+ )?attack that was fit to find anything was withstood")


def headed(row: SummaryRow) -> str:
    """A summary's few words and its reason, as one line; and what more rounds do to it, where they were tried."""
    said = safe(": ".join(filter(None, (row.headline, reason(row.verdict_reason)))), 240)
    return "; ".join(filter(None, (after_rounds(row), said)))


def reason(said: str) -> str:
    """A stored reason as people read it: results keep its words, since cards are compared by them."""
    return _WAS_FIT.sub(r"no \1attack ran that was fit to find anything", said)


def after_rounds(row: SummaryRow) -> str:
    """After how many rounds of the same examples a place leaks; empty where one round alone was tried."""
    if not row.rounds_tried:
        return ""
    tried = ", ".join(map(str, row.rounds_tried))
    if row.leaks_after is None:
        return f"no leak found after any number of rounds tried ({tried})"
    return f"leaks after {row.leaks_after} round{'s' * (row.leaks_after > 1)}, of the numbers tried ({tried})"


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` decimals; many more places than that switch to scientific notation."""
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if abs(value) < 10_000 else f"{value:.1e}"


def percent(value: float | None) -> str:
    """A share in [0, 1] as a percentage with at most one decimal; what is above 0 is not shown as 0."""
    if value is None:
        return MISSING
    return "<0.1%" if 0 < value < 0.0005 else f"{_hundreds(value)}%"


def percent_up(bound: float | None) -> str:
    """A bound from above as a percentage, rounded up."""
    return MISSING if bound is None else presence.percent_up(bound)


def _hundreds(value: float) -> str:
    return f"{100 * value:.1f}".removesuffix(".0")


def rate(summary: Rate | None) -> str:
    """A rate with its 95% interval, such as ``12.5% [5.6-23.2]``."""
    if summary is None or summary.rate is None:
        return MISSING
    if summary.ci95 is None:
        return percent(summary.rate)
    low, high = (MISSING if end is None else _hundreds(end) for end in summary.ci95)
    return f"{percent(summary.rate)} [{low}-{high}]"


def mean(summary: Summary | None, digits: int = 3) -> str:
    """The mean of a metric."""
    return MISSING if summary is None else number(summary.mean, digits)


def p_value(value: float | None) -> str:
    """A p-value; the permutation test resolves none below 0.0001."""
    if value is None:
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def arguments(defense: str, values: Mapping[str, object]) -> str:
    """Return what differs from the defense's defaults, as ``sigma=3 convention=mean``, in stacks with its part's name.

    The result document has all of them. Of a defense that is not known here every argument is shown.
    """
    usual = _usual(defense)
    own = (name for name, value in values.items() if name != "noise_scale" and usual.get(name, _UNKNOWN) != value)
    scale = values.get("noise_scale", 1)
    shown = [_argument(name, values[name]) for name in own] + ([] if scale == 1 else [f"noise x{_plain(scale)}"])
    return safe(" ".join(shown), _LONGEST_ARGUMENTS)


@lru_cache(maxsize=256)
def _usual(defense: str) -> dict[str, object]:
    """The defaults of a defense as a document has them; none where it is not known."""
    try:
        return without_non_finite(usual_defense(defense))
    except UsageError:
        return {}


def _argument(name: str, value: object) -> str:
    return safe(f"{name}={_plain(value)}", 60)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def epsilon(value: float) -> str:
    """An epsilon, and whether it is too large to mean anything: e^epsilon bounds how much likelier anything becomes."""
    return f"{value:.3g}{too_large(value)}"


def too_large(epsilon: float | None) -> str:
    """Return what goes on after an epsilon that promises nothing; empty for others."""
    return ", too large to promise anything" if epsilon is not None and epsilon > MOST_EPSILON else ""


def told(statement: Statement) -> str:
    """Return the bound on membership inference, after its epsilon; empty in documents that are older."""
    if statement.told_apart is None:
        return ""
    mu = "" if statement.mu is None else f", mu {statement.mu:.3g}"
    return f"{mu}, TPR <= {percent_up(statement.told_apart)} at 1% FPR"


def guarantee(statement: Statement, name_view: bool = False) -> str:
    """The guarantee tag and its epsilon, with the claimed one beside it where the two differ by more than 1%."""
    text = safe(statement.guarantee, 40)
    if statement.epsilon is not None:
        text += f", epsilon {epsilon(statement.epsilon)}{told(statement)}"
    claimed = statement.claimed_epsilon
    if claimed is not None and not math.isclose(claimed, statement.epsilon or 0.0, rel_tol=0.01):
        text += f" (claimed {claimed:.3g})"
    return f"{safe(statement.view, 20)}: {text}" if name_view else text


def claimed_and_proven(statements: Iterable[Statement]) -> list[str]:
    """Claimed, proven and why, of each framework's filter that ``harness claims`` knows; a sentence each.

    The tables of ``evaluate``, ``judge`` and ``frontier`` and the page all take it from here.
    """
    said: dict[str, None] = {}
    for one in statements:
        if is_of_claims(one) and one.covers is not False:
            claimed = "nothing" if one.claimed_epsilon is None else f"epsilon {one.claimed_epsilon:.3g}"
            at = "" if one.delta is None else f" (delta {one.delta:g})"
            proven = "nothing" if one.epsilon is None else f"epsilon {epsilon(one.epsilon)}{at}"
            said[f"{one.schedule}, {one.view}: claimed {claimed}, proven {proven}: {one.notes}"] = None
    return [safe(line, 600) for line in said]


def is_of_claims(statement: Statement) -> bool:
    """Return whether it is the statement of a framework's filter, as ``harness claims`` makes them."""
    return (statement.schedule or "").startswith("harness claims")


# The theorem beside the verdict, in words: what was measured, what is a blind guess, and what no attacker can exceed.


def event_of(cell: CellResult, name: str) -> Ceiling | None:
    """The cell's event of that name; None in documents that are older than theorems."""
    events = cell.bound.events if cell.bound else []
    return next((event for event in events if event.event == name), None)


def at_most(bound: Bound | None, event: Ceiling | None) -> str:
    """The ceiling, or why there is none; an empty string in older documents."""
    if bound is None or event is None:
        return ""
    if bound.theorem is None:
        return f"no bound exists: {safe(bound.reason or 'no reason recorded', 200)}"
    if event.ceiling is None:
        return f"not known: {safe(event.reason or 'no reason recorded', 200)}"
    return f"at most {percent_up(event.ceiling)}{' (says little)' * event.says_little}"


def blind(event: Ceiling | None) -> str:
    """Return what the best guess without the observation reaches."""
    return MISSING if event is None else percent(event.kappa)


def first_in_lineup(cell: CellResult) -> str:
    """Return how often truths are first in their lineup, blindly too, and what the theorem allows."""
    event = event_of(cell, "first in its lineup")
    if event is None:
        return MISSING
    if event.measured.rate is None:
        return f"not known: {safe(event.reason or 'no reason recorded', 200)}"
    return f"{rate(event.measured)}; blind guess {blind(event)}; {at_most(cell.bound, event)}"
