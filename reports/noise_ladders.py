"""Pictures along noise: success rates per defense, or by the clients behind a secure sum; and frontiers (below).

The panels tell apart attackers that know the noise, those that do not, blind guesses, and the theorem; for secure sums,
servers that follow the protocol and those that tamper.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.kinds import EVERY, plural, together
from harness.reports import columns, text
from harness.reports.columns import VERDICT_COLOURS
from harness.reports.headline import PROMISE
from harness.reports.pictures import FRAME, drawable, plain_text, save_figure
from harness.reports.text import LEAST_EPSILON, MOST_EPSILON
from harness.results import CellResult, Rate
from harness.results.frontier import FrontierDocument, FrontierPoint
from harness.scoring.verdict import CONFIRMED_SUCCESSES

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
    """Return how far the interval goes from the rate, in per cent."""
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
_PLAIN, _INFORMED, _THEOREM, _GUESS = "#1f77b4", "#d62728", "#7f7f7f", "#b8b8b8"


@dataclass(frozen=True)
class Rung:
    """One level of noise: each tier's best cell (None where no attack was possible), blind guesses, and the ceiling.

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
        panel.plot(*zip(*blind, strict=True), color=_GUESS, ls=":", lw=1.5, label="blind guess")
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
    guessed = {count: cell.kappa.rate for line in made.lines.values() for count, cell in line.items() if cell.kappa}
    if guessed:
        places = sorted(guessed)
        panel.plot(
            places, [100 * (guessed[one] or 0) for one in places], color=_BLIND, ls=":", lw=1.5, label="blind guess"
        )
    seen = {False: 0, True: 0}
    for number, (attack, line) in enumerate(made.lines.items()):
        tampers = next(iter(line.values())).tier == "tampering"
        rank, colours = seen[tampers], _TAMPERS if tampers else _READS
        seen[tampers] += 1
        aside = _ASIDE ** (number - (len(made.lines) - 1) / 2)
        style = {
            "color": colours[rank % len(colours)], "marker": _MARKS[tampers][rank % 3],
            "ls": "none", "label": drawable(f"{attack} ({'tampers' if tampers else 'follows the protocol'})"),
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


# --------------------------------------------------------------------------------------
# The frontier of a defense for people: a table, and a picture.


# A frontier for people: what each level of noise costs, proves, and lets out; and the best of it in words.

_KIND = together(EVERY)
_NOTES = (
    "accuracy: of a model trained in this run with that defense and noise; with few test examples, 1-2 points say "
    "nothing",
    "epsilon: proven for this run against an observer at the tap, for the unit beside it; none: nothing is proven. "
    "Above 10 it guarantees almost nothing. TPR: the most that membership inference reaches at 1% false positives",
    f"success: {_KIND.many} that the best attack reconstructs ({_KIND.success}), with its 95% interval",
    "at most: proven upper bound on the success of any attacker; none exists where no theorem covers the noise",
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
        # A verdict or a name that is broken inside cannot be read.
        whole = name in ("verdict", "best attack") and console.width >= 100
        right = "right" if justify == "right" else "left"
        table.add_column(name, justify=right, overflow="fold", no_wrap=whole)
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
        columns.verdict_word(point.shown), text.rate(point.success), text.percent_up(point.ceiling)
        if point.ceiling is not None else "none exists", text.safe(point.strongest or "-", 24),
    ]  # fmt: skip


def epsilon(point: FrontierPoint) -> str:
    """The proven one with its unit, or ``none``; and what is claimed, where that is another."""
    told = "" if point.told_apart is None else f", TPR <= {text.percent_up(point.told_apart)}"
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
        f"{own['model']}: {own['clients_per_round']} of {plural(own['clients'], 'client')} a round, "
        f"{plural(own['rounds'], 'round')} of {plural(own['local_steps'], 'step')} of {own['batch_size']}; attacked: "
        f"{weights}, {plural(own['victims'], 'victim')}, one "
        f"example in one local step (the easiest case for an attacker), by {own['attacks']}"
    )


def _claims(document: FrontierDocument) -> list[str]:
    """Claimed, proven and why, of each point whose defense is a framework's filter."""
    return text.claimed_and_proven(point.stated for point in document.points if point.stated is not None)


def _reasons(document: FrontierDocument) -> list[str]:
    """Return why there is no epsilon, what leaks where no image shows it, and why nobody could tell. Each comes once,
    with its points."""
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

# Of a panel, and of the legend above all of them; in inches.
_POINTS_WIDTH, _POINTS_HEIGHT, _POINTS_LEGEND = 4.3, 3.6, 0.7
_DEFENSE_MARKS = "osD^vPX"
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
    marks = {name: _DEFENSE_MARKS[number % len(_DEFENSE_MARKS)] for number, name in enumerate(defenses)}
    down = math.ceil(len(panels) / _ACROSS)
    across = math.ceil(len(panels) / down)
    size = (_POINTS_WIDTH * across, _POINTS_HEIGHT * down + _POINTS_LEGEND)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, ((dataset, tap), points) in zip(axes, panels.items(), strict=False):
        _draw_panel(panel, f"{dataset}, {tap}", points, marks)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    _legend(figure, marks, across)
    save_figure(figure, path)


def _draw_panel(panel: Axes, title: str, points: Sequence[tuple[FrontierPoint, bool]], marks: dict[str, str]) -> None:
    proven = any(one.epsilon is not None for one, _ in points)
    base = next((one for one, _ in points if one.setting is None), None)
    least = -math.inf if not proven else LEAST_EPSILON
    places = [(one, best, one.epsilon if proven else one.level) for one, best in points if one.accuracy is not None]
    drawn = [(one, best, max(x, least)) for one, best, x in places if x is not None and max(x, least) > 0]
    if base is not None and base.accuracy is not None:
        panel.axhspan(100 * base.accuracy - 5, 100 * base.accuracy, color=FRAME, alpha=0.3, lw=0)
        panel.axhline(100 * base.accuracy, color=VERDICT_COLOURS[base.shown], lw=1.3, ls="--")
    # Numbers of one defense stand above its points, of the next one below.
    for place, (defense, mark) in enumerate(marks.items()):
        own = sorted((x, 100 * (one.accuracy or 0), one, best) for one, best, x in drawn if one.defense == defense)
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
    more += f"; {least:g}: that or less" if any(x == least for *_, x in drawn) else ""
    said = f"proven epsilon ({more})" if proven else "noise level: no epsilon is proven here"
    panel.set_xlabel("\n".join(map(drawable, [said, *_without_a_place(points, drawn)])), fontsize=8.5, **plain_text())
    panel.set_ylabel("test accuracy", fontsize=8.5)
    panel.grid(axis="y", color=FRAME, linewidth=0.4)
    panel.tick_params(labelsize=8, color=FRAME)
    for name, line in panel.spines.items():
        line.set(color=FRAME, visible=name in ("left", "bottom"))


def _without_a_place(
    points: Sequence[tuple[FrontierPoint, bool]], drawn: Sequence[tuple[FrontierPoint, bool, float]]
) -> list[str]:
    """A line on points that are not drawn: without an accuracy, or without an epsilon where others have one."""
    there = {id(one) for one, *_ in drawn}
    absent = Counter(one.defense for one, _ in points if one.setting is not None and id(one) not in there)
    named = ", ".join(f"{name} ({plural(count, 'point')})" for name, count in absent.items())
    return [f"in the table alone: {named}"] if named else []


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
