"""Common part of all figures of the page: colours that are read on light and dark, axes, rows of a panel."""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings, filterwarnings
from xml.etree import ElementTree

from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from harness.reports.columns import VERDICT_COLOURS
from harness.reports.html import wording
from harness.reports.html.places import Shown

# Figures as a part of the page: SVG of few elements and attributes, in the page's own ink, without styles or scripts.
#
# Text stays text, so it can be read aloud, searched and scaled, and follows the page's colours in the dark.

# Drawn in this colour, shown in whatever colour the page's text has.
INK = "#010203"
# Points of the figure to pixels of the page.
_SCALE = 1.5
_SPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_ELEMENTS = {"g", "path", "defs", "clipPath", "rect", "use", "text", "line", "circle", "polyline", "polygon"}
_ATTRIBUTES = {
    "d", "x", "y", "width", "height", "transform", "clip-path", "id", "fill", "fill-opacity", "stroke", "cx", "cy", "r",
    "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin",
    "opacity", "text-anchor", "font-size", "font-weight",
}  # fmt: skip
_FONT = re.compile(r"(?:(bold|\d{3}) )?(?:\w+ )*?([\d.]+px)")
_DECIMALS = re.compile(r"-?\d+\.\d{2,}")


def inline(figure: Figure, name: str, title: str, description: str) -> Markup:
    """The figure as an ``<svg>`` element.

    Args:
        figure: drawn in INK where it should follow the page's colours.
        name: a word of ours, unique on the page.
        title: what it shows; escaped.
        description: the same for those who do not see it; escaped.
    """
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), catch_warnings():
        # The page's fonts draw the text: what matplotlib's own font lacks matters not.
        filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    width, height = root.get("viewBox", "0 0 1 1").split()[2:]
    used = {link.lstrip("#") for element in root.iter() if (link := element.get(_LINK))}
    used |= {clip[5:-1] for element in root.iter() if (clip := element.get("clip-path"))}
    body = Markup("").join(_clean(child, name, used) for child in root)
    box = f"0 0 {float(width):.0f} {float(height):.0f}"
    return Markup(
        '<svg class="chart" role="img" aria-labelledby="{0}-title {0}-text" viewBox="{1}" width="{2}" '
        'height="{3}"><title id="{0}-title">{4}</title><desc id="{0}-text">{5}</desc>{6}</svg>'
    ).format(name, box, *(round(float(side) * _SCALE) for side in (width, height)), title, description, body)


def _clean(element: ElementTree.Element, name: str, used: set[str]) -> Markup:
    tag = element.tag.removeprefix(_SPACE) if isinstance(element.tag, str) else ""
    if tag not in _ELEMENTS:
        return Markup("")
    children = Markup("").join(_clean(child, name, used) for child in element)
    words = escape(element.text) if tag == "text" and element.text else Markup("")
    # Names are of the sets above, values escaped; Markup.format would take long over thousands of elements.
    attributes = "".join(f' {key}="{escape(value)}"' for key, value in _attributes(element, name, used))
    if tag in ("g", "defs") and not children:
        return Markup("")
    return Markup(f"<{tag}{attributes}>{words}{children}</{tag}>")


def _attributes(element: ElementTree.Element, name: str, used: set[str]) -> Iterator[tuple[str, str]]:
    """Those we know; the declarations of a style become attributes, which the page's policy allows."""
    found = dict(element.attrib) | dict(_declarations(element.get("style", "")))
    for key, value in found.items():
        if key == _LINK and value.startswith("#"):
            yield "href", f"#{name}-{value[1:]}"
        elif key == "id":
            if value in used:
                yield "id", f"{name}-{value}"
        elif key == "clip-path":
            yield key, value.replace("url(#", f"url(#{name}-")
        elif key in _ATTRIBUTES:
            shorter = _DECIMALS.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
            yield key, shorter.replace(INK, "currentColor") if key != "transform" else value


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font" and (font := _FONT.match(value)):
            yield "font-size", font[2]
            if font[1]:
                yield "font-weight", font[1]
        elif key:
            yield key, value


MOST_ROWS = 40
WIDTH, ROW, MARGIN = 9.0, 0.3, 1.0
LABELS = 2.6
SIZE = 9
COLOURS = ("#3b7dd8", "#d1495b", "#2a9d6f", "#9a5fc9", "#c9791b", "#1798a8", "#8a6d5a", "#c2569b")
MARKS, DASHES = "osD^vPX*", ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Chart:
    """A figure: ``note`` says how to read it, ``commands`` make its numbers again where it stands alone."""

    title: str
    picture: Markup
    note: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A row or a line of a figure: cells of one defense that attack the same observation, at several places."""

    shown: Shown
    places: tuple[str, ...]
    name: str

    @property
    def label(self) -> str:
        return f"{wording.SYMBOLS[self.shown.kind]} {self.name} · {', '.join(self.places)}"

    @property
    def colour(self) -> str:
        return VERDICT_COLOURS[self.shown.kind]


def lines(members: Sequence[Shown]) -> list[Line]:
    """Possible cells; those of one defense and observation together."""
    groups: dict[tuple[object, ...], list[Shown]] = {}
    for item in members:
        if item.cell.not_applicable_reason is None:
            same = item.cell.observation_id or (item.cell.tap, item.cell.key)
            groups.setdefault((*item.row, same, item.kind), []).append(item)
    variants: dict[str, set[str]] = {}
    for item in members:
        variants.setdefault(item.defense, set()).add(item.arguments)
    return [
        Line(own[0], tuple(_place(item) for item in own), _short(own[0], len(variants[own[0].defense]) > 1))
        for own in groups.values()
    ]


def _short(item: Shown, told_apart: bool) -> str:
    """The defense's name, with the end of its arguments where others share the name."""
    name = item.defense if len(item.defense) <= 26 else f"{item.defense[:25]}…"
    if not told_apart or not item.arguments:
        return name
    room = max(8, 24 - len(name))
    return f"{name} {item.arguments if len(item.arguments) <= room else '…' + item.arguments[1 - room :]}"


def _place(item: Shown) -> str:
    return str(item.cell.surface) if item.cell.surface is not None else item.cell.tap


def panels(rows: int, columns: int, least: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side with room for the labels of rows."""
    height = max(rows * ROW + MARGIN, least)
    figure = Figure(figsize=(WIDTH, height))
    width = (WIDTH - LABELS - 0.2) / columns
    made = [
        figure.add_axes(
            ((LABELS + number * width) / WIDTH, 0.55 / height, (width - 0.18) / WIDTH, (height - MARGIN + 0.1) / height)
        )
        for number in range(columns)
    ]
    for panel in made:
        dress(panel)
    return figure, made


def dress(panel: Axes) -> None:
    """The page's ink, few lines."""
    panel.patch.set_alpha(0)
    panel.tick_params(labelsize=SIZE, color=INK, labelcolor=INK, length=3)
    for edge, line in panel.spines.items():
        line.set(color=INK, alpha=0.5, linewidth=0.7, visible=edge in ("left", "bottom"))
    panel.grid(color=INK, alpha=0.15, linewidth=0.6)
    panel.set_axisbelow(True)


def say(panel: Axes, **words: str) -> None:
    """Titles and labels of axes as they are: a dollar sign is no formula."""
    for name, value in words.items():
        getattr(panel, f"set_{name}")(value, fontsize=SIZE, color=INK, parse_math=False)


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Labels of rows from the top down."""
    panel.set_yticks(range(len(names)), names, fontsize=SIZE, color=INK, parse_math=False)
    panel.set_ylim(len(names) - 0.4, -0.6)


def legend(panel: Axes, **place: Any) -> None:
    """A legend in which nothing is a formula."""
    made = panel.legend(frameon=False, fontsize=SIZE, labelcolor=INK, handlelength=2.2, **place)
    for entry in made.get_texts():
        entry.set_parse_math(False)


def cut(rows: Sequence[Line]) -> tuple[list[Line], str]:
    """At most forty rows, and a sentence on those left out."""
    more = len(rows) - MOST_ROWS
    return list(
        rows[:MOST_ROWS]
    ), f" {wording.plural(more, 'row')} left out; the table of cells has all." if more > 0 else ""
