"""Noise against success, a panel per defense: who knows the noise, who does not, blind luck, and the theorem."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.reports.pictures import drawable, plain_text
from harness.reports.success_axes import draw_rates, dress, legend_above, save_figure
from harness.results import CellResult

_ACROSS = 3
_WIDTH, _HEIGHT, _LEGEND = 3.7, 2.9, 0.5  # of a panel, and of the legend above all of them; in inches
_PLAIN, _INFORMED, _THEOREM, _LUCK = "#1f77b4", "#d62728", "#7f7f7f", "#b8b8b8"


@dataclass(frozen=True)
class Rung:
    """One level of noise: each tier's best cell (None where no attack was possible), blind luck, and the ceiling.

    ``blind`` and ``ceiling`` are shares in [0, 1] of strict images, None where they are not known or do not exist.
    """

    noise: float
    plain: CellResult | None
    informed: CellResult | None
    blind: float | None
    ceiling: float | None


def save_noise_ladders(path: Path, ladders: Mapping[str, Sequence[Rung]]) -> None:
    """Write a PNG with a panel per ladder, which is named by its key.

    Raises:
        ValueError: no ladder, or one without a level.
        UsageError: the folder cannot be written.
    """
    if not ladders or not all(ladders.values()):
        raise ValueError("there is no level of noise to draw")
    down = math.ceil(len(ladders) / _ACROSS)
    across = math.ceil(len(ladders) / down)
    figure = Figure(figsize=(_WIDTH * across, _HEIGHT * down + _LEGEND), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel, (title, rungs) in zip(panels, ladders.items(), strict=False):
        _draw(panel, title, rungs)
    for panel in panels[len(ladders) :]:
        panel.set_visible(False)
    legend_above(figure, list(panels))
    save_figure(figure, path)


def _draw(panel: Axes, title: str, rungs: Sequence[Rung]) -> None:
    noise = [rung.noise for rung in rungs]
    ceilings = [(rung.noise, rung.ceiling) for rung in rungs if rung.ceiling is not None]
    if ceilings:
        edge, most = zip(*ceilings, strict=True)
        panel.fill_between(edge, [100 * value for value in most], 100, color=_THEOREM, alpha=0.25, lw=0)
        panel.plot(edge, [100 * value for value in most], color=_THEOREM, lw=1.2, label="no attacker gets beyond")
    else:
        panel.text(0.97, 0.92, "no bound exists", transform=panel.transAxes, ha="right", fontsize=8, color=_THEOREM)
    blind = [(rung.noise, 100 * rung.blind) for rung in rungs if rung.blind is not None]
    if blind:
        panel.plot(*zip(*blind, strict=True), color=_LUCK, ls=":", lw=1.5, label="blind guess")
    for name, tier, colour, mark in (
        ("does not know the noise", "plain", _PLAIN, "o"), ("knows the noise", "informed", _INFORMED, "s"),
    ):  # fmt: skip
        cells = [(rung.noise, getattr(rung, tier)) for rung in rungs if getattr(rung, tier) is not None]
        if cells:
            draw_rates(panel, cells, {"color": colour, "marker": mark, "label": name})
    panel.set_xscale("log")
    panel.set(xlim=(noise[0] / 1.6, noise[-1] * 1.6))
    name, _, axis = title.rpartition(": ")
    panel.set_title(drawable(name), fontsize=9, fontweight="bold", loc="left", **plain_text())
    panel.set_xlabel(drawable(f"{axis} (hollow: no leak was found)"), fontsize=8.5, **plain_text())
    dress(panel)
