"""What pictures of success rates share: per cents upwards, a cell's rate with its interval, hollow where none leaks."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.reports.pictures import DOTS_PER_INCH, FRAME, plain_text
from harness.results import CellResult, Rate, write_atomic


def dress(panel: Axes) -> None:
    """Per cents upwards, thin lines, and a frame on two sides only."""
    panel.set(ylim=(-4, 104))
    panel.set_yticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)], **plain_text())
    panel.grid(axis="y", color=FRAME, linewidth=0.4)
    panel.tick_params(labelsize=8, color=FRAME)
    for edge_name, line in panel.spines.items():
        line.set(color=FRAME, visible=edge_name in ("left", "bottom"))


def draw_rates(panel: Axes, cells: Sequence[tuple[float, CellResult]], style: dict[str, Any]) -> None:
    """Strict successes of cells at their places, with 95% intervals; hollow where no leak was found.

    ``style`` names a ``marker`` and a ``color``.
    """
    rates = [cell.asr["strict"] for _, cell in cells]
    middle = [100 * (rate.rate or 0.0) for rate in rates]
    reach = [[_reach(rate, end) for rate in rates] for end in (0, 1)]
    places = [place for place, _ in cells]
    panel.errorbar(places, middle, reach, capsize=2.5, lw=1.5, elinewidth=0.9, markersize=5, **style)
    held = [number for number, (_, cell) in enumerate(cells) if cell.verdict != "leaks"]
    hollow = [places[number] for number in held], [middle[number] for number in held]
    panel.plot(*hollow, ls="", marker=style["marker"], color=style["color"], markerfacecolor="white", zorder=4)


def _reach(rate: Rate, end: int) -> float:
    """How far the interval goes from the rate, in per cent."""
    return 0.0 if rate.ci95 is None else max(0.0, 100 * abs((rate.ci95[end] or 0.0) - (rate.rate or 0.0)))


def legend_above(figure: Figure, panels: Sequence[Axes], across: int | None = None) -> None:
    """One legend for all panels, each name once, in ``across`` columns; all in one row by default."""
    handles = {line.get_label(): line for panel in panels for line in panel.get_legend_handles_labels()[0]}
    figure.legend(
        list(handles.values()), list(map(str, handles)), loc="outside upper center", ncols=across or len(handles),
        frameon=False, fontsize=8.5,
    )  # fmt: skip


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all.

    Raises:
        UsageError: the folder cannot be written.
    """
    buffer = io.BytesIO()
    # Without the software's name equal inputs give equal bytes whatever matplotlib wrote them.
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())
