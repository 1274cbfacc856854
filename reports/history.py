"""Nights side by side: a table of how each number moved, and a small picture per cell."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.errors import UsageError
from harness.gate.trend import Point, Trend
from harness.reports.pictures import drawable, plain_text
from harness.reports.text import number, percent, safe
from harness.results import write_atomic

FORMATS = ("svg", "png")
_COLUMNS, _WIDTH, _HEIGHT = 3, 4.2, 2.1  # a panel's size in inches
_ASR, _RANK = "#1f77b4", "#d62728"
_SHOWN, _TICKS = 6, 5
_MOST_PANELS = 60


def print_history(names: Sequence[str], trends: Sequence[Trend], console: Console) -> None:
    """Prints a row per cell: success and mean rank in the last runs, the cells that moved most first."""
    table = Table("cell", *(safe(name, 20) for name in names[-_SHOWN:]), "moved")
    for trend in trends:
        points = [Text(_point(point)) for point in trend.points[-_SHOWN:]]
        table.add_row(Text(safe(trend.title)), *points, f"{trend.span:.2f}")
    console.print(table)
    console.print(Text("success and mean relative rank of the truth: 0 nearest, 0.5 chance"))


def _point(point: Point) -> str:
    return f"{percent(point.asr)}  {number(point.mean_rank, 2)}"


def save_history(path: Path, names: Sequence[str], trends: Sequence[Trend]) -> None:
    """Draw success (with its 95% interval) and mean rank over the runs, a panel for each of the first 60 cells.

    Args:
        path: ends in .svg or .png.
        names: of the runs, in order.
        trends: at least one.

    Raises:
        UsageError: another kind of file, or the folder cannot be written.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"cannot draw {str(path)!r}; let --out end in {' or '.join('.' + name for name in FORMATS)}")
    every, trends = len(trends), trends[:_MOST_PANELS]
    rows = math.ceil(len(trends) / _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _WIDTH, rows * _HEIGHT + 0.5), layout="constrained")
    panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for panel, trend in zip(panels, trends, strict=False):
        _draw(panel, trend, names)
    for panel in panels[len(trends) :]:
        panel.set_visible(False)
    cut = f"; the {len(trends)} of {every} cells that moved most" if every > len(trends) else ""
    title = f"success rate (blue, 95% interval) and mean rank of the truth (red, 0.5 is chance){cut}"
    figure.suptitle(title, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=100)
    write_atomic(path, buffer.getvalue())


def _draw(panel: Axes, trend: Trend, names: Sequence[str]) -> None:
    places = range(len(names))
    asr = [math.nan if point.asr is None else point.asr for point in trend.points]
    rank = [math.nan if point.mean_rank is None else point.mean_rank for point in trend.points]
    bands = [point.ci95 or (math.nan, math.nan) for point in trend.points]
    low, high = (np.array([band[end] for band in bands], dtype=float) for end in (0, 1))
    panel.fill_between(places, low, high, color=_ASR, alpha=0.15)
    panel.plot(places, asr, color=_ASR, marker="o", markersize=3)
    panel.plot(places, rank, color=_RANK, marker="s", markersize=3, linestyle="--")
    panel.set(xlim=(-0.3, len(names) - 0.7), ylim=(-0.03, 1.03))
    panel.set_title(drawable(safe(trend.title, 74)), fontsize=7, **plain_text())
    ticks = [*places][:: max(1, math.ceil(len(names) / _TICKS))]
    panel.set_xticks(ticks, [drawable(safe(names[tick], 14)) for tick in ticks], fontsize=6, **plain_text())
    panel.tick_params(axis="y", labelsize=6)
    panel.grid(alpha=0.3)
