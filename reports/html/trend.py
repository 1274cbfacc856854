"""The trend section: how the cells that several runs have in common moved from run to run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from harness.gate.comparing import EFFECT
from harness.gate.trend import Point, Trend, trends_of, with_settings
from harness.reports import text
from harness.reports.html import chart, wording
from harness.reports.html.chart import inline
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, figure, make, words

MOST_PANELS, MOST_RUNS = 12, 12
SUCCESS, RANK = chart.COLOURS[0], chart.COLOURS[1]
_WIDTH, _HEIGHT = 3.3, 1.75  # of a panel, in inches
_TICKS = 4


@dataclass(frozen=True)
class Panel:
    """A cell's lines over the runs; ``change`` says (verdict, words) where its verdict became another one."""

    title: str
    change: tuple[str, str] | None
    picture: Markup


@dataclass(frozen=True)
class TrendSection:
    """Sentence on what moved, and the panels of the cells that moved most."""

    sentence: str
    panels: tuple[Panel, ...]
    left_out: str


def shared(runs: Sequence[RunData]) -> tuple[list[str], list[Trend]]:
    """Names of the runs in the given order, and the trends of cells that two of them or more have evaluated."""
    played = [run for run in runs if run.cells]
    names, cells = [run.name for run in played], with_settings([(run.cells, run.files.get) for run in played])
    if len(played) < 2:
        return names, []
    found = trends_of(cells, [run.valid for run in played])
    return names, [one for one in found if sum(point.known for point in one.points) > 1]


def trend_section(runs: Sequence[RunData]) -> TrendSection | None:
    """The section; None where no cell occurs in two runs."""
    names, found = shared(runs)
    if not found:
        return None
    panels = tuple(_panel(number, names, one) for number, one in enumerate(found[:MOST_PANELS]))
    more = len(found) - len(panels)
    left_out = f"The figure has the {len(panels)} largest changes; the table has all {len(found)}." if more else ""
    return TrendSection(_sentence(names, found), panels, left_out)


def trend_table(runs: Sequence[RunData]) -> Table:
    """Four rows per cell, one for each number; the last twelve runs."""
    names, found = shared(runs)
    first = max(0, len(names) - MOST_RUNS)
    rows = [row for one in found for row in _rows(one, first)]
    titles = (
        Head("cell"), Head("number", choice=True), *(Head(name, number=True) for name in names[first:]),
        Head("moved", number=True),
    )  # fmt: skip
    note = (
        "Runs in the order given, largest changes first. Success: share of what was reconstructed. Mean rank of the "
        "truth among look-alikes: 0 is nearest, 0.5 is chance. RMSE: median over victims."
    )
    note += f" The last {MOST_RUNS} of {len(names)} runs." if first else ""
    return make("trend", "How each number moved", titles, rows, note)


def _rows(one: Trend, first: int) -> list[tuple[Value, ...]]:
    points, cell = one.points[first:], words(one.title, 200)
    shares = [Value(text.percent(point.asr), point.asr) for point in points]
    verdicts = [_verdict(point) for point in points]
    ranks, errors = [figure(point.mean_rank, 2) for point in points], [figure(point.rmse) for point in points]
    became = Value("same", 0.0) if _change(one) is None else Value("changed", 1.0)
    became = words(None) if len(_usable(one)) < 2 else became
    return [
        (cell, Value("verdict"), *verdicts, became),
        (cell, Value("success"), *shares, _moved([point.asr for point in points], 100, " points")),
        (cell, Value("mean rank"), *ranks, _moved([point.mean_rank for point in points])),
        (cell, Value("RMSE"), *errors, _moved([point.rmse for point in points])),
    ]


def _verdict(point: Point) -> Value:
    if point.verdict is None:
        return words(None)
    why = wording.traces(point.traces_p)
    return Value(f"{wording.SYMBOLS[point.verdict]} {wording.WORDS[point.verdict]}{why}", point.verdict, point.verdict)


def _moved(values: Sequence[float | None], scale: int = 1, unit: str = "") -> Value:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return words(None)
    span = max(known) - min(known)
    return Value(f"{scale * span:.{0 if unit else 2}f}{unit}", span)


def _change(one: Trend) -> tuple[str, str] | None:
    """(last verdict, words) where it differs from the first one."""
    known = _usable(one)
    if not known or known[0] == known[-1]:
        return None
    return known[-1], f"{wording.WORDS[known[0]]} → {wording.SYMBOLS[known[-1]]} {wording.WORDS[known[-1]]}"


def _usable(one: Trend) -> list[str]:
    return [point.verdict for point in one.points if point.verdict not in (None, "invalid")]


def _sentence(names: Sequence[str], found: Sequence[Trend]) -> str:
    moved = sum(one.span >= EFFECT - 1e-9 for one in found)
    changed = [one for one in found if _change(one)]
    first = f"Over {wording.plural(len(names), 'run')}, {moved} of {wording.plural(len(found), 'cell')} moved"
    noise = f" by {100 * EFFECT:.0f} points or more in success or mean rank"
    if not changed:
        return f"{first}{noise}; no verdict changed."
    leaking = sum(one[0] == "leaks" for one in map(_change, changed) if one)
    return (
        f"{first}{noise}; {wording.plural(len(changed), 'verdict')} changed between the first run and the last, "
        f"{leaking or 'none'} of them to {wording.WORDS['leaks']}."
    )


def _panel(number: int, names: Sequence[str], one: Trend) -> Panel:
    drawn = Figure(figsize=(_WIDTH, _HEIGHT))
    panel = drawn.add_axes((0.13, 0.16, 0.84, 0.78))
    chart.dress(panel)
    places = range(len(names))
    success, ranks = [_there(point.asr) for point in one.points], [_there(point.mean_rank) for point in one.points]
    bands = [[_there(end) for end in point.ci95 or (None, None)] for point in one.points]
    panel.fill_between(places, [low for low, _ in bands], [high for _, high in bands], color=SUCCESS, alpha=0.18, lw=0)
    panel.plot(places, ranks, color=RANK, marker="s", markersize=4, linewidth=1.5, linestyle="--")
    panel.plot(places, success, color=SUCCESS, marker="o", markersize=5, linewidth=1.8)
    panel.set(xlim=(-0.35, len(names) - 0.65), ylim=(-0.06, 1.06))
    panel.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    ticks = [*places][:: max(1, math.ceil(len(names) / _TICKS))]
    panel.set_xticks(ticks, [text.safe(names[tick], 12) for tick in ticks], parse_math=False)
    title = text.safe(one.title, 200)
    spoken = "; ".join(
        f"{name}: success {text.percent(point.asr)}, mean rank {text.number(point.mean_rank, 2)}"
        for name, point in zip(names[-MOST_RUNS:], one.points[-MOST_RUNS:], strict=True)
    )
    return Panel(title, _change(one), inline(drawn, f"trend-{number}", title, f"{spoken}."))


def _there(value: float | None) -> float:
    """Success and ranks lie in [0, 1]; a document from elsewhere may say anything."""
    return math.nan if value is None else min(1.0, max(0.0, value))
