"""Figures as a part of the page: SVG of few elements and attributes, in the page's own ink, without styles or scripts.

Text stays text, so it can be read aloud, searched and scaled, and follows the page's colours in the dark.
"""

import io
import re
from collections.abc import Iterator
from warnings import catch_warnings, filterwarnings
from xml.etree import ElementTree

from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
