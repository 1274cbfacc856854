"""The figures of a page: distributions of errors, success over thresholds, and what a theorem bounds."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from harness.base.kinds import Kind
from harness.reports import text
from harness.reports.columns import VERDICT_COLOURS, kinds_of, success_rate
from harness.reports.html import chart
from harness.reports.html.chart import INK, Chart, Line, inline
from harness.reports.text import at_most, blind, event_of
from harness.results import Ceiling, CellResult, VictimRecord
from harness.scoring import METRICS

# Figure: how RMSE, PSNR, SSIM and LPIPS spread over the victims.

_DISTRIBUTIONS_NOTE = (
    "Each row is a hill of the victims of one defense: the higher, the more of them; the tick is the median. "
    "A low RMSE and LPIPS and a high PSNR and SSIM, or a high share of tokens, mean that something came back."
)
_METRICS = [
    (name, metric.title, metric.limits) for name, metric in METRICS.items() if metric.title and metric.in_victims
]
_BINS = 20


def distribution_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A panel per metric, a row per defense and observation; None where no victim has any."""
    rows, rest = chart.cut(rows)
    values = {metric: [_values(row, metric) for row in rows] for metric, *_ in _METRICS}
    shown = [entry for entry in _METRICS if any(len(own) for own in values[entry[0]])]
    if not shown:
        return None
    figure, panels = chart.panels(len(rows), len(shown), least=1.8)
    for number, (panel, (metric, heading, limits)) in enumerate(zip(panels, shown, strict=True)):
        for place, (row, own) in enumerate(zip(rows, values[metric], strict=True)):
            if len(own):
                _hill(panel, place, np.clip(own, *limits), limits, row.colour)
        chart.name_rows(panel, [row.label if number == 0 else "" for row in rows])
        margin = 0.06 * (limits[1] - limits[0])  # keeps the outermost labels of neighbours apart
        panel.set_xlim(limits[0] - margin, limits[1] + margin)
        panel.locator_params(axis="x", nbins=3)
        chart.say(panel, xlabel=heading)
    medians = "; ".join(
        f"{row.label}: "
        + ", ".join(f"{heading} {text.number(_median(values[metric][place]))}" for metric, heading, _ in shown)
        for place, row in enumerate(rows[:12])
    )
    heading = "Distributions over victims"
    return Chart(
        heading, inline(figure, name, f"{heading}: {title}", f"Medians. {medians}."), _DISTRIBUTIONS_NOTE + rest
    )


def _values(row: Line, metric: str) -> np.ndarray:
    records = row.shown.run.victims.get(row.shown.cell.key or "", [])
    return np.array([value for one in records if (value := getattr(one, metric, None)) is not None], dtype=float)


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _hill(panel, place: int, values: np.ndarray, limits: tuple[float, float], colour: str) -> None:
    counts, edges = np.histogram(values, bins=_BINS, range=limits)
    base = place + 0.32
    panel.stairs(base - 0.74 * counts / max(1, counts.max()), edges, baseline=base, fill=True, color=colour, alpha=0.6)
    median = float(np.median(values))
    panel.plot([median, median], [place + 0.4, place - 0.44], color=INK, linewidth=1.4)


# Figure: share of images that came back, with its 95% interval.

_SUCCESS_NOTE = (
    "Each row is a defense and the surfaces of observation; the dot is the share of {many} that came back ({success}), "
    "the bar its 95% interval, over victims."
)


def success_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """Dots with intervals, a row per defense and observation; None where no cell has a rate."""
    rated = [row for row in rows if (found := row.shown.cell.asr.get("strict")) and found.rate is not None]
    if not rated:
        return None
    rated, rest = chart.cut(rated)
    figure, [panel] = chart.panels(len(rated), 1)
    for place, row in enumerate(rated):
        found = row.shown.cell.asr["strict"]
        rate = _percent(found.rate)
        low, high = (_percent(end) for end in found.ci95 or (found.rate, found.rate))
        panel.plot([low, high], [place, place], color=row.colour, linewidth=5, alpha=0.45, solid_capstyle="round")
        panel.plot([rate], [place], color=row.colour, marker="o", markersize=6)
        # Beside the interval, on whichever side there is room.
        left = high < 60
        panel.annotate(
            success_rate(row.shown.cell), (high if left else low, place), xytext=(8 if left else -8, 0),
            textcoords="offset points", ha="left" if left else "right", va="center", fontsize=8.5, color=INK,
        )  # fmt: skip
    chart.name_rows(panel, [row.label for row in rated])
    panel.set_xlim(-2, 102)
    panel.set_xticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)])
    chart.say(panel, xlabel="success [95%]")
    spoken = "; ".join(f"{row.label}: {success_rate(row.shown.cell)}" for row in rated[:12])
    heading = "Success with intervals"
    note = _SUCCESS_NOTE.format(**asdict(_kind(rated))) + rest
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), note)


def _kind(rows: Sequence[Line]) -> Kind:
    return kinds_of(row.shown.cell for row in rows)


def _percent(rate: float | None) -> float:
    return 100 * min(1.0, max(0.0, rate or 0.0))


# Figure: how many images had come back by which iteration.

_TAUS_NOTE = (
    "Each line is the share of a defense's victims that had met the success rule by an iteration; a line that stays "
    "at the bottom never succeeded. All lines end at the attack's cap."
)


def tau_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A curve per defense and observation; None where victims have no tau."""
    rows, rest = chart.cut(rows)
    curves = [(row, *curve) for row in rows if (curve := _curve(row))]
    if not curves:
        return None
    cap = max(2.0, *(end for *_, end in curves))
    figure, [panel] = chart.panels(0, 1, least=max(3.4, 0.17 * len(curves) + 1.0))
    panel.set_position((0.08, 0.17, 0.52, 0.75))
    for number, (row, iterations, total, _) in enumerate(curves):
        steps = np.concatenate(([1.0], np.sort(iterations), [cap]))
        shares = np.concatenate((np.arange(len(iterations) + 1), [len(iterations)])) * 100 / total
        # Thinner and thinner, or curves that agree would hide each other.
        panel.step(
            steps, shares, where="post", label=row.label, linewidth=max(1.0, 5.0 - 3.4 * number / len(curves)),
            color=chart.COLOURS[number % len(chart.COLOURS)], linestyle=chart.DASHES[number // 8 % 4],
        )  # fmt: skip
    panel.set_xscale("log")
    panel.set_xlim(1, cap * 1.05)
    panel.set_ylim(-3, 106)
    panel.set_yticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)])
    chart.say(panel, xlabel="iteration", ylabel="victims that came back")
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000) if tick <= cap]
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    chart.legend(panel, loc="upper left", bbox_to_anchor=(1.03, 1.02), borderaxespad=0)
    spoken = "; ".join(f"{row.label}: {len(found)} of {total} in the end" for row, found, total, _ in curves[:12])
    heading = "Iterations until success"
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), _TAUS_NOTE + rest)


def _curve(row: Line) -> tuple[np.ndarray, int, float] | None:
    """(iterations of first success, victims, cap), or None."""
    records = [one for one in row.shown.run.victims.get(row.shown.cell.key or "", []) if one.tau is not None]
    if not records:
        return None
    cap = _cap(row.shown.cell, records)
    found = [min(max(one.tau or 1.0, 1.0), cap) for one in records if (one.tau or cap) < cap]
    return np.array(found), len(records), cap


def _cap(cell: CellResult, records: Sequence[VictimRecord]) -> float:
    cap = cell.attack_args.get("max_iterations")
    known = cap if isinstance(cap, int | float) and cap >= 1 else max(one.tau or 1.0 for one in records)
    return float(min(max(known, 1.0), 1e6))


# Figure: what was measured from below, and what a theorem says from above, with blind luck between.

_THEOREM_NOTE = (
    "The dot is what the attack reached, the bar its 95% interval, the short line in the page's ink what a blind guess "
    "reaches. The shaded part is what the theorem leaves to any attacker, up to its edge; where no bound exists "
    "nothing limits a better attack. A rate significantly beyond the edge makes the run invalid. Small shares are "
    "drawn wider."
)
_BOUND = chart.COLOURS[0]
_TICKS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
_HALF = 0.36  # of a row
_NONE, _WORD, _GAP = "no bound exists", 0.32, 0.03  # its length, and what is left free beside it


def _events(kind: Kind) -> dict[str, str]:
    """Each event in words."""
    return {"first in its lineup": "first in the lineup", "strict image": kind.success}


def theorem_chart(name: str, title: str, rows: Sequence[Line]) -> Chart | None:
    """A panel for each event, a row per defense and observation; None where no cell knows of theorems."""
    known = [row for row in rows if row.shown.cell.bound is not None and row.shown.cell.bound.events]
    if not known:
        return None
    known, rest = chart.cut(known)
    there = _events(_kind(known)).items()
    events = {event: words for event, words in there if any(event_of(row.shown.cell, event) for row in known)}
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
    return Chart(heading, inline(figure, name, f"{heading}: {title}", f"{spoken}."), _THEOREM_NOTE + rest)


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
        "measured [95%]": {"color": VERDICT_COLOURS["inconclusive"], "marker": "o", "linewidth": 3},
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
        for name, words in _events(cell.kind).items()
        if (event := event_of(cell, name))
    )
    return f"{row.label}: {'; '.join(said)}"


def _share(rate: float | None) -> float:
    return min(1.0, max(0.0, rate or 0.0))
