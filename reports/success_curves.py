"""Curves of the success rate: over looks at a record, over rounds that are seen, and over the course of training."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.reports import columns, text
from harness.reports.pictures import FRAME, drawable, plain_text, save_figure
from harness.results import CellResult, Rate

# In inches; the legend stands to the right of each panel.
_WIDTH, _PANEL, _LEGEND = 9.5, 3.4, 3.9
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
_MARKS, _DASHES = "osD^vPX*", ("-", "--", ":", "-.")

Curve = dict[int, CellResult]
_FIRST = "first in its lineup"


def _strict(cell: CellResult) -> Rate | None:
    return cell.asr.get("strict")


def _first(cell: CellResult) -> Rate | None:
    event = text.event_of(cell, _FIRST)
    return None if event is None else event.measured


@dataclass(frozen=True)
class Axis:
    """Axis that a curve runs over: a cell's ``place`` on it, how the others are named (``aside``), and the axis' label.

    ``rate``: what is drawn, and ``event`` that of theorems for it, whose limit is drawn beside; None for no limit.
    """

    label: str
    place: Callable[[CellResult], int]
    aside: Callable[[CellResult], str]
    doubling: bool = False
    rate: Callable[[CellResult], Rate | None] = _strict
    said: str = "success [95%]"
    event: str | None = None


def _in_words(cell: CellResult, but: str) -> str:
    """Return what else differs between cells along an axis, but for the axis itself."""
    looks = cell.observations if but != "looks" else 1
    rounds = columns.rounds_seen(cell) if but != "seen" else 1
    before = cell.round if but != "round" else 0
    return (
        (f" | round {before}" if before else "") + (f" | seen {looks}x" if looks > 1 else "")
        + (f" | {rounds} rounds seen" if rounds > 1 else "")
    )  # fmt: skip


LOOKS = Axis(
    "times the same record was seen",
    lambda cell: cell.observations,
    lambda cell: _in_words(cell, "looks"),
    doubling=True,
)
ROUNDS = Axis("rounds of training before", lambda cell: cell.round, lambda cell: _in_words(cell, "round"))
SEEN = Axis(
    "rounds of the same examples that were seen", columns.rounds_seen, lambda cell: _in_words(cell, "seen"), True,
    _first, "first in its lineup [95%]", _FIRST,
)  # fmt: skip


def save_curves(folder: Path, cells: Sequence[CellResult]) -> None:
    """Write ``observations.png``, ``rounds.png`` and ``rounds_seen.png``, where cells lie along. Raises UsageError."""
    for name, axis in (("observations", LOOKS), ("rounds", ROUNDS), ("rounds_seen", SEEN)):
        save_success_curves(folder / f"{name}.png", cells, axis)


def save_success_curves(path: Path, cells: Sequence[CellResult], axis: Axis) -> bool:
    """Write a PNG of success rates with their 95% intervals, a panel per setting.

    Args:
        path: where to write; it appears whole or not at all.
        cells: of a document; controls, impossible cells and lines of a single point are left out.
        axis: LOOKS, ROUNDS or SEEN.

    Returns:
        Whether there was anything to draw.

    Raises:
        UsageError: the folder cannot be written.
    """
    panels = _panels(cells, axis)
    if not panels:
        return False
    height = _PANEL * len(panels)
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    for number, (setting, lines) in enumerate(panels.items()):
        lower = height - _PANEL * (number + 1) + 0.6
        place = (0.7 / _WIDTH, lower / height, (_WIDTH - _LEGEND - 0.7) / _WIDTH, (_PANEL - 1.1) / height)
        _draw(figure.add_axes(place), setting, lines, axis)
    save_figure(figure, path)
    return True


def _panels(cells: Sequence[CellResult], axis: Axis) -> dict[str, dict[tuple[str, str, str], Curve]]:
    """Lines by setting and by (defense, attack, place); places that show the same observations are one line."""
    found: dict[str, dict[tuple[str, str, str], Curve]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        if cell.role == "cell" and axis.rate(cell) is not None:
            place = cell.tap if cell.surface is None else f"surface {cell.surface}"
            names = (columns.defense(cell).plain.replace("\n", " "), columns.attacker(cell), place)
            found[columns.setting(_over(cell)) + axis.aside(cell)][names][axis.place(cell)] = cell
    panels = {setting: _merged(lines) for setting, lines in found.items()}
    return {setting: lines for setting, lines in panels.items() if lines}


def _over(cell: CellResult) -> CellResult:
    """The cell as rounds that were seen do not tell it from others."""
    return cell.model_copy(update={"options": {one: it for one, it in cell.options.items() if one != "rounds_seen"}})


def _merged(lines: dict[tuple[str, str, str], Curve]) -> dict[tuple[str, str, str], Curve]:
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for (defense, attack, place), line in lines.items():
        if len(line) > 1:
            alike[(defense, attack, *(cell.observation_id or place for cell in line.values()))].append(place)
    return {
        (str(defense), str(attack), " and ".join(sorted(places))): lines[(str(defense), str(attack), places[0])]
        for (defense, attack, *_), places in alike.items()
    }


def _draw(panel: Axes, setting: str, lines: dict[tuple[str, str, str], Curve], axis: Axis) -> None:
    defenses, attacks, places = (list(dict.fromkeys(names[part] for names in lines)) for part in range(3))
    known = sorted({place for line in lines.values() for place in line})
    for number, ((defense, attack, place), line) in enumerate(lines.items()):
        points = sorted(line)
        across = _apart(points, number - (len(lines) - 1) / 2, known, axis)
        rates = [rate for point in points if (rate := axis.rate(line[point])) is not None]
        middle = [100 * (rate.rate or 0.0) for rate in rates]
        ends = [rate.ci95 or (rate.rate, rate.rate) for rate in rates]
        reach = [
            [max(0.0, value - 100 * (low or 0.0)) for value, (low, _) in zip(middle, ends, strict=True)],
            [max(0.0, 100 * (high or 0.0) - value) for value, (_, high) in zip(middle, ends, strict=True)],
        ]
        style = {
            "color": _COLOURS[defenses.index(defense) % len(_COLOURS)],
            "marker": _MARKS[attacks.index(attack) % len(_MARKS)],
            "markersize": 5,
        }
        panel.errorbar(
            across, middle, reach, capsize=2.5, linewidth=1.4, elinewidth=0.9, **style,
            linestyle=_DASHES[places.index(place) % len(_DASHES)],
            label=drawable(f"{text.safe(defense, 46)}\n{text.safe(attack, 24)}, {place}"),
        )  # fmt: skip
        held = [spot for spot, point in enumerate(points) if line[point].verdict != "leaks"]
        hollow = [across[spot] for spot in held], [middle[spot] for spot in held]
        panel.plot(*hollow, **style, linestyle="", markerfacecolor="white", zorder=4)
    _draw_limits(panel, lines, axis)
    _label(panel, setting, known, axis)


def _draw_limits(panel: Axes, lines: dict[tuple[str, str, str], Curve], axis: Axis) -> None:
    """Draw what no attacker exceeds by a theorem, once for lines that share it."""
    drawn = set[tuple[tuple[int, float], ...]]()
    for line in lines.values():
        events = [(at, text.event_of(line[at], axis.event)) for at in sorted(line)] if axis.event else []
        limits = tuple((at, 100 * one.ceiling) for at, one in events if one and one.ceiling is not None)
        if len(limits) > 1 and limits not in drawn:
            label = "" if drawn else "the most that a\ntheorem allows"
            panel.plot(*zip(*limits, strict=True), color="#555555", linewidth=1.2, linestyle=(0, (1, 1.5)), label=label)
            drawn.add(limits)


def _apart(points: Sequence[int], lane: float, known: Sequence[int], axis: Axis) -> list[float]:
    """The points a little aside, or lines that agree would hide each other."""
    if axis.doubling:
        return [point * 1.06**lane for point in points]
    return [point + 0.008 * lane * (known[-1] - known[0]) for point in points]


def _label(panel: Axes, setting: str, known: Sequence[int], axis: Axis) -> None:
    margin = 0.06 * (known[-1] - known[0])
    limits = known[0] - margin, known[-1] + margin
    if axis.doubling:
        panel.set_xscale("log", base=2)
        limits = known[0] / 1.35, known[-1] * 1.35
    panel.set_xticks(known, [str(point) for point in known], **plain_text())
    panel.minorticks_off()
    panel.set(ylim=(-4, 104), yticks=range(0, 101, 25), xlim=limits)
    panel.set_yticks(range(0, 101, 25), [f"{percent}%" for percent in range(0, 101, 25)], **plain_text())
    panel.set_xlabel(f"{axis.label} (hollow: not found to leak)", fontsize=9, **plain_text())
    panel.set_ylabel(axis.said, fontsize=9, **plain_text())
    panel.set_title(drawable(setting), fontsize=9.5, fontweight="bold", loc="left", **plain_text())
    panel.grid(axis="y", color=FRAME, linewidth=0.4)
    panel.tick_params(labelsize=8.5, color=FRAME)
    for edge, line in panel.spines.items():
        line.set(color=FRAME, visible=edge in ("left", "bottom"))
    legend = panel.legend(loc="upper left", bbox_to_anchor=(1.02, 1.04), frameon=False, fontsize=8, handlelength=3)
    for entry in legend.get_texts():
        entry.set_parse_math(False)
