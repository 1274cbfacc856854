"""A frontier as a picture: accuracy against what is proven, a panel per dataset, coloured by what leaks."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.reports.html.chart import VERDICT_COLOURS
from harness.reports.pictures import DOTS_PER_INCH, FRAME, drawable, plain_text
from harness.reports.text import MOST_EPSILON
from harness.results import write_atomic
from harness.results.frontier import FrontierDocument, FrontierPoint

_ACROSS = 3
_WIDTH, _HEIGHT, _LEGEND = 4.3, 3.6, 0.7  # of a panel, and of the legend above all of them; in inches
_MARKS = "osD^vPX"
_WORDS = {"leaks": "leaks", "inconclusive": "undecided", "resilient": "resilient"}
_INK = "#222222"


def save_frontier(path: Path, document: FrontierDocument) -> None:
    """Write a PNG with a panel per dataset and tap.

    Raises:
        ValueError: there is no point.
        UsageError: the folder cannot be written.
    """
    panels: dict[tuple[str, str], list[tuple[FrontierPoint, bool]]] = {}
    for number, point in enumerate(document.points):
        panels.setdefault((point.dataset, point.tap), []).append((point, number in document.best))
    if not panels:
        raise ValueError("there is no point to draw")
    defenses = list(dict.fromkeys(one.defense for one in document.points if one.setting is not None))
    marks = {name: _MARKS[number % len(_MARKS)] for number, name in enumerate(defenses)}
    down = math.ceil(len(panels) / _ACROSS)
    across = math.ceil(len(panels) / down)
    figure = Figure(figsize=(_WIDTH * across, _HEIGHT * down + _LEGEND), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, ((dataset, tap), points) in zip(axes, panels.items(), strict=False):
        _draw(panel, f"{dataset}, {tap}", points, marks)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    _legend(figure, marks, across)
    buffer = io.BytesIO()
    # Without the software's name equal inputs give equal bytes whatever matplotlib wrote them.
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


def _draw(panel: Axes, title: str, points: Sequence[tuple[FrontierPoint, bool]], marks: dict[str, str]) -> None:
    proven = any(one.epsilon is not None for one, _ in points)
    base = next((one for one, _ in points if one.setting is None), None)
    drawn = [(one, best, one.epsilon if proven else one.level) for one, best in points if one.accuracy is not None]
    if base is not None and base.accuracy is not None:
        panel.axhspan(100 * base.accuracy - 5, 100 * base.accuracy, color=FRAME, alpha=0.3, lw=0)
        panel.axhline(100 * base.accuracy, color=VERDICT_COLOURS[base.shown], lw=1.3, ls="--")
    # Numbers of one defense stand above its points, of the next one below.
    for place, (defense, mark) in enumerate(marks.items()):
        own = sorted(
            (x, 100 * (one.accuracy or 0), one, best) for one, best, x in drawn if one.defense == defense and x
        )
        panel.plot([x for x, *_ in own], [y for _, y, *_ in own], color=FRAME, lw=1, zorder=1)
        for x, y, one, best in own:
            colour = VERDICT_COLOURS[one.shown]
            panel.plot(x, y, marker=mark, color=colour, markersize=8, markeredgecolor="white", zorder=3)
            if best:
                panel.plot(x, y, marker="o", color=_INK, markersize=17, fillstyle="none", zorder=4)
            away = (19 if best else 15) * (-1 if place % 2 else 1) - 3
            panel.annotate(
                f"{one.level:g}", (x, y), xytext=(0, away), textcoords="offset points",
                ha="center", fontsize=7.5, zorder=5, **plain_text(),
            )  # fmt: skip
    panel.set_xscale("log")
    panel.margins(x=0.12)
    vain = proven and (right := panel.get_xlim()[1]) > MOST_EPSILON
    if vain:
        panel.axvspan(max(panel.get_xlim()[0], MOST_EPSILON), right, color=FRAME, alpha=0.18, lw=0, zorder=0)
        panel.set_xlim(right=right)
    panel.set_ylim(0, 108)
    panel.set_yticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)], **plain_text())
    panel.set_title(drawable(title), fontsize=9.5, fontweight="bold", loc="left", **plain_text())
    more = "shaded: promises nothing" if vain else "smaller promises more"
    said = f"proven epsilon ({more})" if proven else "noise level: no epsilon is proven here"
    panel.set_xlabel(drawable(said), fontsize=8.5, **plain_text())
    panel.set_ylabel("test accuracy", fontsize=8.5)
    panel.grid(axis="y", color=FRAME, linewidth=0.4)
    panel.tick_params(labelsize=8, color=FRAME)
    for name, line in panel.spines.items():
        line.set(color=FRAME, visible=name in ("left", "bottom"))


def _legend(figure: Figure, marks: dict[str, str], across: int) -> None:
    def dot(mark: str, colour: str, label: str, filled: bool = True) -> Line2D:
        face = colour if filled else "none"
        return Line2D([], [], marker=mark, color=colour, ls="", markersize=8, label=label, markerfacecolor=face)

    handles = [
        *(dot(mark, "#8a8a8a", drawable(name)) for name, mark in marks.items()),
        *(dot("s", VERDICT_COLOURS[word], said) for word, said in _WORDS.items()),
        dot("o", _INK, "the best (numbers: noise)", filled=False),
        Line2D([], [], color=VERDICT_COLOURS["leaks"], ls="--", lw=1.3, label="no defense (grey: 5 points below)"),
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles) if across == _ACROSS else 2 * across,
        frameon=False,
        fontsize=8.5,
    )
