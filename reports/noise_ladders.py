"""Success rates as pictures: against noise, a panel per defense, and against the number of clients behind a secure sum.

The panels tell apart attackers that know the noise, those that do not, blind guesses, and the theorem; for secure sums,
servers that follow the protocol and those that tamper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.reports.pictures import FRAME, drawable, plain_text, save_figure
from harness.results import CellResult, Rate

# What pictures of success rates share: per cents upwards, a cell's rate with its interval, hollow where none leaks.


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


_SUM_WIDTH, _SUM_HEIGHT, _SUM_LEGEND = 4.2, 3.1, 0.45  # of a panel, and of the legend above all of them; in inches
_READS, _TAMPERS = ("#1f77b4", "#17becf", "#9467bd"), ("#d62728", "#ff7f0e", "#8c564b")
_MARKS = {False: "osv", True: "D^P"}
_BLIND = "#777777"
_FAINT = {"lw": 1.2, "alpha": 0.35, "zorder": 1}
_ASIDE = 1.1
"""Attacks stand so far aside of each other, as a factor, that none at zero hides the next."""
_EDGE = 1.4


@dataclass(frozen=True)
class Sums:
    """A panel: of each attack, cells by how many clients (two or more) are behind a sum."""

    title: str
    lines: Mapping[str, Mapping[int, CellResult]]


def save_secure_sums(path: Path, panels: Sequence[Sums]) -> None:
    """Write a PNG with the panels side by side.

    Raises:
        ValueError: there is nothing to draw.
        UsageError: the folder cannot be written.
    """
    if not panels or not all(panel.lines for panel in panels):
        raise ValueError("there is no secure sum to draw")
    figure = Figure(
        figsize=(_SUM_WIDTH * len(panels), _SUM_HEIGHT + _SUM_LEGEND), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    clients = sorted({count for panel in panels for line in panel.lines.values() for count in line})
    axes = list(figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0])
    for panel, made in zip(axes, panels, strict=True):
        _draw_sum(panel, made, clients)
    axes[0].set_ylabel("images back [95%, over whole rounds]", fontsize=8.5, **plain_text())
    legend_above(figure, axes, across=3)
    save_figure(figure, path)


def _draw_sum(panel: Axes, made: Sums, clients: Sequence[int]) -> None:
    luck = {count: cell.kappa.rate for line in made.lines.values() for count, cell in line.items() if cell.kappa}
    if luck:
        places = sorted(luck)
        panel.plot(
            places, [100 * (luck[one] or 0) for one in places], color=_BLIND, ls=":", lw=1.5, label="blind guess"
        )
    seen = {False: 0, True: 0}
    for number, (attack, line) in enumerate(made.lines.items()):
        tampers = next(iter(line.values())).tier == "tampering"
        rank, colours = seen[tampers], _TAMPERS if tampers else _READS
        seen[tampers] += 1
        aside = _ASIDE ** (number - (len(made.lines) - 1) / 2)
        style = {
            "color": colours[rank % len(colours)], "marker": _MARKS[tampers][rank % 3],
            "ls": "none", "label": drawable(f"{attack} ({'tampers' if tampers else 'reads along'})"),
        }  # fmt: skip
        placed = [(count * aside, line[count]) for count in sorted(line)]
        # The way from one sum to the next is drawn faintly: several of them may lie at zero.
        rates = [100 * (cell.asr["strict"].rate or 0.0) for _, cell in placed]
        panel.plot([place for place, _ in placed], rates, color=style["color"], ls="-" if tampers else "--", **_FAINT)
        draw_rates(panel, placed, style)
    panel.set_xscale("log")
    panel.set(xlim=(clients[0] / _EDGE, clients[-1] * _EDGE))
    panel.set_xticks(clients, [str(count) for count in clients], **plain_text())
    panel.minorticks_off()
    panel.set_xlabel("clients in the sum (hollow: no leak was found)", fontsize=8.5, **plain_text())
    panel.set_title(drawable(made.title), fontsize=9, fontweight="bold", loc="left", **plain_text())
    dress(panel)
