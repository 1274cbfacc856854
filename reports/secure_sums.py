"""Clients behind a secure sum against success: who reads along, who tampers, with and without distributed noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.reports.noise_ladders import draw_rates, dress, legend_above, save_figure
from harness.reports.pictures import drawable, plain_text
from harness.results import CellResult

_WIDTH, _HEIGHT, _LEGEND = 4.2, 3.1, 0.45  # of a panel, and of the legend above all of them; in inches
_READS, _TAMPERS = ("#1f77b4", "#17becf", "#9467bd"), ("#d62728", "#ff7f0e", "#8c564b")
_MARKS = {False: "osv", True: "D^P"}
_LUCK = "#777777"
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
    figure = Figure(figsize=(_WIDTH * len(panels), _HEIGHT + _LEGEND), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    clients = sorted({count for panel in panels for line in panel.lines.values() for count in line})
    axes = list(figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0])
    for panel, made in zip(axes, panels, strict=True):
        _draw(panel, made, clients)
    axes[0].set_ylabel("images back [95%, over whole rounds]", fontsize=8.5, **plain_text())
    legend_above(figure, axes, across=3)
    save_figure(figure, path)


def _draw(panel: Axes, made: Sums, clients: Sequence[int]) -> None:
    luck = {count: cell.kappa.rate for line in made.lines.values() for count, cell in line.items() if cell.kappa}
    if luck:
        places = sorted(luck)
        panel.plot(places, [100 * (luck[one] or 0) for one in places], color=_LUCK, ls=":", lw=1.5, label="blind guess")
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
