"""The picture of what an attack made of clients whose truth nobody keeps."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.reports.pictures import DOTS_PER_INCH, drawable, plain_text
from harness.results import write_atomic

MOST_SHOWN = 24
_ACROSS, _TILE, _CAPTION, _TITLE = 8, 1.15, 0.4, 0.4  # in inches
_LETTERS = 16  # of a line above a tile


def save_guesses(path: Path, images: np.ndarray, captions: Sequence[str], title: str) -> None:
    """Write a PNG of the first images, at most 24, with what is said of each.

    Args:
        path: where to write; it appears whole or not at all.
        images: (n, C, H, W), n >= 1; values outside [0, 1] are clamped; C is 1 (grey) or 3 (red, green, blue).
        captions: one per image.

    Raises:
        UsageError: the folder cannot be written.
    """
    shown = min(len(images), MOST_SHOWN)
    across, down = min(_ACROSS, shown), math.ceil(shown / _ACROSS)
    figure = Figure(
        figsize=(max(4.0, across * _TILE), down * (_TILE + _CAPTION) + _TITLE), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(drawable(title), fontsize=9, fontweight="bold", **plain_text())
    for tile, image, caption in zip(
        figure.subplots(down, across, squeeze=False).flatten(), images[:shown], captions[:shown], strict=False
    ):
        pixels = np.nan_to_num(image).clip(0, 1).transpose(1, 2, 0)
        tile.imshow(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
        tile.set_title(drawable("\n".join(wrap(caption, _LETTERS))), fontsize=7, **plain_text())
    for tile in figure.axes:
        tile.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())
