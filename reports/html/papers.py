"""The papers' layout: defenses side by side, a line per surface and measure, a table per setting and attack."""

from collections.abc import Callable, Sequence

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.places import Shown, grouped
from harness.reports.html.table import Head, Table, Value, figure, make
from harness.scoring.verdict import traces_p

_LETTERS = {"leaks": "N", "resilient": "Y", "inconclusive": "?", "invalid": "!"}
_MISSING = Value(text.MISSING)


def paper_tables(cells: Sequence[Shown]) -> list[Table]:
    """A table per setting and attack that was possible."""
    groups = grouped(item for item in cells if item.cell.not_applicable_reason is None)
    return [
        _table(number, setting, attack, members)
        for number, ((setting, attack), members) in enumerate(groups.items(), start=1)
    ]


def _table(number: int, setting: str, attack: str, members: Sequence[Shown]) -> Table:
    names = list(dict.fromkeys(item.row for item in members))
    at = {(item.row, item.cell.tap): item for item in members}
    taps = sorted({(-(item.cell.surface or 0), item.cell.tap): item.cell for item in members}.items())
    rows = [
        (Value(wording.surface(first)), Value(title), *(_entry(at.get((name, first.tap)), show) for name in names))
        for _, first in taps
        for title, show in _MEASURES
    ]
    titles = [Head("surface"), Head("measure"), *(Head(" ".join(filter(None, name)), number=True) for name in names)]
    return make(
        f"paper-{number}", f"{text.safe(attack, 40)}: {setting}", titles, rows,
        "Y resilient, N leaks, ? undecided, ! of an invalid run: the verdict with its controls, not a pixel threshold. "
        "ASR: attack success rate; distance: median RMSE; iterations: mean over all victims, failures at the cap.",
    )  # fmt: skip


def _entry(item: Shown | None, show: Callable[[Shown], Value]) -> Value:
    return _MISSING if item is None else show(item)


def _letter(item: Shown) -> Value:
    return Value(_LETTERS[item.kind] + (wording.traces(traces_p(item.cell)) if item.kind == "leaks" else ""))


def _success(item: Shown) -> Value:
    rate = item.cell.asr.get("strict")
    return Value(text.rate(rate), rate and rate.rate)


def _median(item: Shown) -> Value:
    metrics = item.cell.metrics
    return figure(getattr(metrics.get("rmse") or metrics.get("continuous_rmse"), "median", None), 4)


_MEASURES: tuple[tuple[str, Callable[[Shown], Value]], ...] = (
    ("resilient", _letter),
    ("ASR", _success),
    ("distance", _median),
    ("iterations", lambda item: figure(getattr(item.cell.metrics.get("tau"), "mean", None), 0)),
)
