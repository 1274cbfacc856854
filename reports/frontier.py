"""The frontier of a defense for people: a table, and a picture."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.kinds import EVERY, together
from harness.reports import columns, text
from harness.reports.columns import VERDICT_COLOURS
from harness.reports.headline import PROMISE
from harness.reports.pictures import FRAME, drawable, plain_text, save_figure
from harness.reports.text import MOST_EPSILON
from harness.results.frontier import FrontierDocument, FrontierPoint
from harness.scoring.verdict import CONFIRMED_SUCCESSES

# A frontier for people: what each level of noise costs, proves, and lets out; and the best of it in words.

_KIND = together(EVERY)
_NOTES = (
    "accuracy: of a model trained here with that defense and noise; with few test examples, a point or two is noise",
    "epsilon: proven for that very run, against whoever reads there, for the unit beside it; none: nothing is proven. "
    "Above 10 it promises nothing. Tells: of units that were there, the most any attacker calls so at 1% false alarms",
    f"success: {_KIND.many} that the best attack brings back ({_KIND.success}), with its 95% interval",
    "at most: what no attacker whatever exceeds, by a theorem; none exists where the noise hides nothing provably",
)


def print_frontier(document: FrontierDocument, console: Console) -> None:
    """Prints the answers, then the table and what the reader needs to know beside it."""
    if not document.valid:
        reason = text.safe(document.valid_reason or "a negative control failed", 300)
        console.print(Text(f"THE RUN IS INVALID, its verdicts must not be used: {reason}", style="bold red"))
    for words, best in zip(document.answers, document.best, strict=True):
        proven = None if best is None else document.points[best].epsilon
        good = document.valid and best is not None and (proven is None or proven <= text.MOST_EPSILON)
        console.print(Text(words, style="bold green" if good else "bold yellow"))
    if document.answers:
        console.print(Text(f"{PROMISE}\n"))
    table = Table(title="How much noise is needed, and what it costs", title_justify="left")
    for name, justify in (
        ("data", "left"), ("defense", "left"), ("noise", "right"), ("tap", "left"), ("accuracy", "right"),
        ("epsilon", "right"), ("verdict", "left"), ("success [95%]", "right"), ("at most", "right"),
        ("best attack", "left"),
    ):  # fmt: skip
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for number, point in enumerate(document.points):
        last = number + 1 == len(document.points) or document.points[number + 1].dataset != point.dataset
        table.add_row(*_row(point, number in document.best), end_section=last)
    console.print(table)
    for line in (_federation(document), *_NOTES, *_reasons(document), *_claims(document)):
        console.print(Text(f"- {line}"))


def _row(point: FrontierPoint, best: bool) -> list[str | Text]:
    noise = "" if point.level is None else f"{point.setting} {point.level:g}"
    return [
        text.safe(point.dataset, 30), Text(text.safe(point.defense, 40) + " *" * best, style="bold" if best else ""),
        noise, point.tap, text.percent(point.accuracy), epsilon(point),
        columns.verdict_word(point.shown), text.rate(point.success), text.percent(point.ceiling)
        if point.ceiling is not None else "none exists", text.safe(point.strongest or "-", 24),
    ]  # fmt: skip


def epsilon(point: FrontierPoint) -> str:
    """The proven one with its unit, or ``none``; and what is claimed, where that is another."""
    told = "" if point.told_apart is None else f", tells {text.percent(point.told_apart)}"
    proven = "none" if point.epsilon is None else f"{point.epsilon:.3g} ({text.safe(point.unit or '?', 12)}){told}"
    claimed = point.claimed_epsilon
    same = claimed is None or math.isclose(claimed, point.epsilon or 0.0, rel_tol=0.01)
    return proven if same else f"{proven}, claimed {claimed:.3g}"


def _federation(document: FrontierDocument) -> str:
    own = document.settings
    weights = {
        "initial": "initial weights, a network for each victim",
        "trained": "the weights that the training ended with, one network for all victims",
    }[str(own["attacked"])]
    return (
        f"{own['model']}: {own['clients_per_round']} of {own['clients']} clients a round, {own['rounds']} rounds of "
        f"{own['local_steps']} steps of {own['batch_size']}; attacked: {weights}, {own['victims']} victims, one "
        f"example in one local step (the easiest case for an attacker), by {own['attacks']}"
    )


def _claims(document: FrontierDocument) -> list[str]:
    """Claimed, proven and why, of each point whose defense is a framework's filter."""
    return text.claimed_and_proven(point.stated for point in document.points if point.stated is not None)


def _reasons(document: FrontierDocument) -> list[str]:
    """Why there is no epsilon, what leaks where no image shows it, and why nobody could tell, each once with its
    points."""
    found: dict[str, dict[str, None]] = {}
    for point in document.points:
        name = f"{point.defense} on {point.dataset}"
        if point.epsilon is None and point.setting is not None:
            found.setdefault(f"no epsilon: {point.epsilon_reason}", {})[name] = None
        at = f"{name}, {point.setting} {point.level:g}" if point.level is not None else name
        if point.verdict == "leaks" and point.success.successes < CONFIRMED_SUCCESSES:
            found.setdefault(f"leaks: {point.verdict_reason}", {})[at] = None
        if point.shown == "inconclusive":
            found.setdefault(f"undecided: {point.verdict_reason}", {})[at] = None
    return [text.safe(f"{reason} ({'; '.join(names)})", 900) for reason, names in found.items()]


# A frontier as a picture: accuracy against what is proven, a panel per dataset, coloured by what leaks.

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
    save_figure(figure, path)


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
