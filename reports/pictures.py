"""A picture per cell: each victim's truth, its reconstruction as the attack went on, and where that ended."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from harness.results import write_atomic

MOST_ROWS = 8
DOTS_PER_INCH = 150
_FONT = "DejaVu Sans"
# All in inches.
_TILE, _GAP = 1.05, 0.08
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.25, 1.45, 0.6, 0.2
_TITLE_LINE, _TITLE_LETTER = 0.19, 0.095
_INK, FRAME = "#222222", "#b8b8b8"


def save_grid(
    path: Path,
    truth: np.ndarray,
    stages: Sequence[tuple[str, np.ndarray]],
    final: np.ndarray,
    captions: Sequence[str],
    title: str,
) -> None:
    """Write a PNG with a row per victim image, at most eight: truth, stages, final, caption.

    Args:
        path: where to write; it appears whole or not at all.
        truth: (n, C, H, W) in [0, 1], n >= 1; C is 1 (grey) or 3 (red, green, blue).
        stages: reconstructions (n, C, H, W) along the way with their labels, such as ``("iteration 10", images)``.
        final: (n, C, H, W). Values outside [0, 1] are clamped, NaN is black.
        captions: one per row, such as ``"RMSE 0.034"``; line breaks are kept.
        title: above the grid, broken over lines where it is long.

    Raises:
        ValueError: shapes or the number of captions disagree.
        UsageError: the folder cannot be written.
    """
    columns = [("truth", truth), *stages, ("final", final)]
    _check(columns, captions)
    rows = min(len(truth), MOST_ROWS)
    figure, page, place = _layout(rows, len(columns), title)
    for column, (label, images) in enumerate(columns):
        weight = "bold" if column in (0, len(columns) - 1) else "normal"
        left, upper = place(0, column)
        page.text(
            left + _TILE / 2,
            upper + 6 / 72,
            drawable(label),
            ha="center",
            fontsize=9,
            fontweight=weight,
            **plain_text(),
        )
        for row in range(rows):
            _draw(page, place(row, column), images[row])
    for row, caption in enumerate(captions[:rows]):
        left, upper = place(row, len(columns) - 1)
        beside = left + _TILE + 7 / 72, upper - _TILE / 2
        page.text(*beside, drawable(caption), va="center", fontsize=8.5, **plain_text())
    save_figure(figure, path)


def _check(columns: Sequence[tuple[str, np.ndarray]], captions: Sequence[str]) -> None:
    shape = columns[0][1].shape
    if len(shape) != 4 or shape[0] < 1 or shape[1] not in (1, 3):
        raise ValueError(f"truth must be (n, C, H, W) with n >= 1 and C 1 or 3, not {shape}")
    require_alike(columns, captions, "images")


def require_alike(made: Sequence[tuple[str, np.ndarray]], captions: Sequence[str], what: str) -> None:
    """Raises ValueError where values differ in shape from the first, or captions are not as many as there are."""
    shape = made[0][1].shape
    for label, values in made:
        if values.shape != shape:
            raise ValueError(f"{label!r} has shape {values.shape}, truth {shape}")
    if len(captions) != shape[0]:
        raise ValueError(f"{len(captions)} captions for {shape[0]} {what}")


Corner = Callable[[int, int], tuple[float, float]]


def _layout(rows: int, columns: int, title: str) -> tuple[Figure, Axes, Corner]:
    """A figure, its page measured in inches, and the left upper corner of the tile at a row and a column.

    All tiles are of equal size, whatever their number, and lie on one page: with axes for each, a picture takes three
    times as long.
    """
    width = _LEFT + columns * (_TILE + _GAP) - _GAP + _RIGHT
    lines = wrap(drawable(title), int((width - 2 * _LEFT) / _TITLE_LETTER))
    top = _TOP + _TITLE_LINE * len(lines)
    height = top + rows * (_TILE + _GAP) - _GAP + _BOTTOM
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    page = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    page.set_axis_off()
    heading = {"fontsize": 10.5, "fontweight": "bold", "va": "top", "ha": "left"}
    page.text(_LEFT, height - 0.18, "\n".join(lines), **heading, **plain_text())
    return figure, page, lambda row, column: (_LEFT + column * (_TILE + _GAP), height - top - row * (_TILE + _GAP))


def _draw(page: Axes, corner: tuple[float, float], image: np.ndarray) -> None:
    """One (C, H, W) image with hard pixel edges and a thin frame."""
    (left, upper), pixels = corner, np.clip(np.nan_to_num(np.moveaxis(image, 0, -1), nan=0.0), 0.0, 1.0)
    extent = (left, left + _TILE, upper - _TILE, upper)
    tile = AxesImage(
        page, cmap="gray", norm=Normalize(0.0, 1.0), interpolation="nearest", extent=extent, origin="upper"
    )
    tile.set_data(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    page.add_image(tile)
    page.add_patch(Rectangle((left, upper - _TILE), _TILE, _TILE, fill=False, edgecolor=FRAME, linewidth=0.6))


#: Forms that a picture is also written in, beside the PNG that reports read; both are drawn without pixels for lines
#: and letters.
ALSO = ("svg", "pdf")
_also: ContextVar[tuple[str, ...]] = ContextVar("also", default=())


@contextmanager
def also_as(kinds: Sequence[str]) -> Iterator[None]:
    """Within the block each picture is written in these forms too, of :data:`ALSO`."""
    token = _also.set(tuple(kinds))
    try:
        yield
    finally:
        _also.reset(token)


def as_chosen(draw: Callable[..., None]) -> Callable[..., None]:
    """Return what draws in the forms that were chosen here, wherever it is called: also by another process."""
    return partial(_drawn_as, _also.get(), draw) if _also.get() else draw


def _drawn_as(kinds: tuple[str, ...], draw: Callable[..., None], *given: Any) -> None:
    with also_as(kinds):
        draw(*given)


def save_figure(figure: Figure, path: Path, dpi: int = DOTS_PER_INCH, **beside: str) -> None:
    """Write a PNG, whole or not at all, and beside it the forms of :func:`also_as`.

    Args:
        beside: what stands beside the pixels in the file, by its name.

    Raises:
        UsageError: the folder cannot be written.
    """
    # Without the software's name equal inputs give equal bytes whatever matplotlib wrote them.
    write_atomic(path, _bytes_of(figure, "png", dpi, {"Software": None, **beside}))
    for kind in _also.get():
        write_atomic(path.with_suffix(f".{kind}"), _bytes_of(figure, kind, dpi, {}))


def _bytes_of(figure: Figure, kind: str, dpi: int, said: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    said = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Creator": None}}.get(kind, said)
    with rc_context({"svg.hashsalt": "harness"}):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=said)
    return buffer.getvalue()


Box = tuple[int, int, int, int]


def plain_text() -> dict[str, Any]:
    """Text as it is: a dollar sign in a name must not start a formula."""
    return {"parse_math": False, "usetex": False, "color": _INK, "fontfamily": _FONT}


def drawable(text: str) -> str:
    """The text with a question mark for every character that the font lacks."""
    font = get_font(findfont(FontProperties(family=_FONT)))
    return "".join(mark if mark == "\n" or font.get_char_index(ord(mark)) else "?" for mark in text)


def first_rows_box(width: int, height: int, rows: int) -> tuple[int, int, int, int]:
    """Return where a grid of this size shows the labels of its columns and its first ``rows``, without the title
    above."""
    tall = height / DOTS_PER_INCH - _TOP - _BOTTOM + _GAP
    shown = min(max(1, int((tall - 0.5 * _TITLE_LINE) // (_TILE + _GAP))), MOST_ROWS)
    title = max(0.0, tall - shown * (_TILE + _GAP)) + 0.5 * (_TOP - _TITLE_LINE)
    lower = height - (_BOTTOM + max(0, shown - rows) * (_TILE + _GAP) - _GAP / 2) * DOTS_PER_INCH
    upper = round(title * DOTS_PER_INCH)
    return 0, min(upper, height - 1), width, max(min(round(lower), height), upper + 1)


def last_row_boxes(width: int, height: int) -> tuple[Box, Box] | None:
    """Return where a grid of this size shows its last victim's truth and final reconstruction:
    (left, top, right, bottom).

    None where a picture is too small to be a grid.
    """
    lower, upper = (height - part * DOTS_PER_INCH for part in (_BOTTOM, _BOTTOM + _TILE))
    truth, final = _LEFT * DOTS_PER_INCH, width - (_RIGHT + _TILE) * DOTS_PER_INCH
    if upper < 0 or final <= truth:
        return None

    def tile(left: float) -> Box:
        # Without the frame around it.
        right, bottom = _TILE * DOTS_PER_INCH - 3 + left, lower - upper - 3 + upper
        return round(2 + left), round(2 + upper), round(right), round(bottom)

    return tile(truth), tile(final)
