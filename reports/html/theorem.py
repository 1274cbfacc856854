"""Figure: what was measured from below, and what a theorem says from above, with blind luck between."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from harness.reports import text
from harness.reports.html import chart
from harness.reports.html.chart import Chart, Line
from harness.reports.html.svg import INK, inline
from harness.reports.theorem import at_most, blind, event_of
from harness.results import Ceiling

NOTE = (
    "The dot is what the attack reached, the bar its 95% interval, the short line in the page's ink what a blind guess "
    "reaches. The shaded part is what the theorem leaves to any attacker, up to its edge; where no bound exists "
    "nothing limits a better attack. A rate significantly beyond the edge makes the run invalid. Small shares are "
    "drawn wider."
)
_EVENTS = {"first in its lineup": "first in the lineup", "strict image": "RMSE at most 0.1"}
_BOUND = chart.COLOURS[0]
_TICKS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
_HALF = 0.36  # of a row
_NONE, _WORD, _GAP = "no bound exists", 0.32, 0.03  # its length, and what is left free beside it


def theorem_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A panel for each event, a row per defense and observation; None where no cell knows of theorems."""
    known = [row for row in rows if row.shown.cell.bound is not None and row.shown.cell.bound.events]
    if not known:
        return None
    known, rest = chart.cut(known)
    events = {event: words for event, words in _EVENTS.items() if any(event_of(row.shown.cell, event) for row in known)}
    figure, panels = chart.panels(len(known), len(events))
    for panel, (event, words) in zip(panels, events.items(), strict=True):
        for place, row in enumerate(known):
            _row(panel, place, row, event)
        chart.name_rows(panel, [row.label for row in known] if panel is panels[0] else [""] * len(known))
        panel.set_xscale("function", functions=(lambda share: share**0.5, lambda length: length**2))
        panel.set_xlim(0, 1.15)
        panel.set_xticks(_TICKS, [text.percent(tick) for tick in _TICKS])
        chart.say(panel, xlabel=words)
    _legend(panels[0])
    spoken = "; ".join(_spoken(row) for row in known[:12])
    heading = "The theorem beside what was measured"
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), NOTE + rest)


def _row(panel: Axes, place: int, row: Line, name: str) -> None:
    event, bound = event_of(row.shown.cell, name), row.shown.cell.bound
    if event is None or bound is None:
        return
    if event.ceiling is not None:
        edge = _share(event.ceiling)
        panel.fill_between([0, edge], place - _HALF, place + _HALF, color=_BOUND, alpha=0.16, lw=0)
        panel.plot([edge, edge], [place - _HALF, place + _HALF], color=_BOUND, linewidth=2)
    elif bound.theorem is None:
        panel.text(_room(event) ** 2, place, _NONE, va="center", fontsize=8, color=INK)
    if event.kappa is not None:
        panel.plot([_share(event.kappa)] * 2, [place - 0.24, place + 0.24], color=INK, linewidth=1.4)
    if event.measured.rate is not None:
        low, high = (_share(end) for end in event.measured.ci95 or (event.measured.rate,) * 2)
        panel.plot([low, high], [place, place], color=row.colour, linewidth=4, alpha=0.5, solid_capstyle="round")
        panel.plot([_share(event.measured.rate)], [place], color=row.colour, marker="o", markersize=5, clip_on=False)


def _room(event: Ceiling) -> float:
    """Where a word of so many lengths of the axis hides no mark: on the right if it can, in roots of shares."""
    low, high = (_share(end) ** 0.5 for end in event.measured.ci95 or (event.measured.rate,) * 2)
    blind_at = _share(event.kappa) ** 0.5
    places = (1 - _WORD, blind_at + _GAP, _GAP)

    def free(start: float) -> bool:
        end = start + _WORD
        return not start < blind_at < end and (end < low - _GAP or high + _GAP < start)

    return next(filter(free, places), places[0])


def _legend(panel: Axes) -> None:
    """What the marks mean, above the rows."""
    marks: dict[str, dict[str, Any]] = {
        "measured [95%]": {"color": chart.VERDICT_COLOURS["inconclusive"], "marker": "o", "linewidth": 3},
        "blind guess": {"color": INK, "marker": "|", "markersize": 9, "linestyle": ""},
        "at most, by the theorem": {"color": _BOUND, "marker": "|", "markersize": 9, "linewidth": 6, "alpha": 0.5},
    }
    for words, style in marks.items():
        panel.plot([], [], label=words, **style)
    chart.legend(panel, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(marks), borderaxespad=0)


def _spoken(row: Line) -> str:
    cell = row.shown.cell
    said = (
        f"{words} {text.rate(event.measured)}, blind {blind(event)}, {at_most(cell.bound, event)}"
        for name, words in _EVENTS.items()
        if (event := event_of(cell, name))
    )
    return f"{row.label}: {'; '.join(said)}"


def _share(rate: float | None) -> float:
    return min(1.0, max(0.0, rate or 0.0))
