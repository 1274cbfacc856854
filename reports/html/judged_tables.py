"""Tables of what ``harness judge`` found out of captures."""

from collections.abc import Sequence

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.judged import Estimate
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, figure, make, words

_MOST = 400


def check_table(runs: Sequence[RunData]) -> Table:
    """Whether what was sent is what is declared, check by check."""
    rows = [
        (
            words(run.name), words(check.name, 80),
            Value(f"{wording.SYMBOLS[check.kind]} {check.outcome}", None, check.kind), words(check.detail, 300),
        )
        for run in runs
        if run.judged
        for check in run.judged.checks
    ]  # fmt: skip
    titles = (Head("run"), Head("check"), Head("outcome", choice=True), Head("what was seen", wide=True))
    return make(
        "checks", "Is what was sent what is declared?", titles, rows,
        "From the updates alone, or from the truth if it is known; the probability of a false alarm is at most one in "
        "100,000 for each check.",
    )  # fmt: skip


def estimate_table(runs: Sequence[RunData]) -> Table:
    """What each attack makes of each capture."""
    rows = [
        (words(run.name), words(one.attack, 40), Value(str(number + 1), float(number + 1)), *_capture(one, number))
        for run in runs
        if run.judged
        for one in run.judged.estimates
        for number in range(len(one.estimates))
    ]  # fmt: skip
    titles = (
        Head("run"), Head("attack", choice=True), Head("capture", number=True), Head("estimate", choice=True),
        Head("of the loss left", number=True), Head("left when shuffled", number=True),
        Head("left by successes, at most", number=True), Head("labels inferred"),
    )  # fmt: skip
    reasons = dict.fromkeys(
        f" {text.safe(one.attack, 40)}: {text.safe(one.reason, 300)}."
        for run in runs
        if run.judged
        for one in run.judged.estimates
    )
    more = f" Of {len(rows)} rows the first {_MOST}." if len(rows) > _MOST else ""
    return make(
        "estimates", "What comes back, by estimate", titles, rows[:_MOST],
        "No truth was known: a capture counts as plausibly reconstructed where simulated stand-ins come back and it is "
        f"matched as those are, and as a shuffled update is not.{''.join(reasons)}{more}",
    )  # fmt: skip


def _capture(one: Estimate, number: int) -> tuple[Value, ...]:
    def entry(values: Sequence | None):
        return values[number] if values is not None and number < len(values) else None

    labels = entry(one.labels)
    return (
        words(one.estimates[number]), _loss(entry(one.left)), _loss(entry(one.left_shuffled)), _loss(one.left_usually),
        words(None if labels is None else ", ".join(map(str, labels[:32]))),
    )  # fmt: skip


def _loss(value: float | None) -> Value:
    """Losses differ by orders of magnitude."""
    return figure(None) if value is None else Value(f"{value:.3g}", value)
