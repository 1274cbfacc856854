"""The picture of a cell of texts: of each victim the truth, and below it what came back, wrong tokens marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.base.words import Words
from harness.reports.pictures import FRAME, drawable, plain_text, save_figure

# In inches; a line holds so many letters of a font whose letters are all as wide.
_WIDTH, _LINE, _LETTER, _LEFT, _TOP, _GAP = 9.0, 0.19, 0.0725, 1.2, 0.55, 0.16
_LETTERS = int((_WIDTH - _LEFT - 0.2) / _LETTER)
_WORD: dict[str, Any] = {"fontsize": 8.5, "va": "baseline", "fontfamily": "DejaVu Sans Mono"}
_MARKED: dict[str, Any] = {"color": "#b3261e", "fontweight": "bold"}
_NONE = "(nothing)"

Piece = tuple[str, bool]
"""A word, and whether it is wrong."""


def save_texts(
    path: Path, truth: Sequence[Sequence[int]], made: Sequence[Sequence[int]], words: Words, captions: Sequence[str],
    title: str,
) -> None:  # fmt: skip
    """Write a PNG with two blocks of lines per text.

    Args:
        path: where to write; it appears whole or not at all.
        truth, made: token numbers (n, T).
        words: the vocabulary.
        captions: one per text, such as ``"tokens right 96%"``.
        title: above all of it.

    Raises:
        UsageError: the folder cannot be written.
    """
    blocks = []
    for true, guess, caption in zip(truth, made, captions, strict=True):
        wrong = [one != other for one, other in zip(true, guess, strict=True)]
        said = [(word, off) for word, off in zip(_words(guess, words), wrong, strict=False)]
        blocks.append((caption, _lines([(word, False) for word in _words(true, words)]), _lines(said)))
    lines = sum(len(true) + len(made) for _, true, made in blocks)
    height = _TOP + lines * _LINE + len(blocks) * _GAP + 0.3
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    bold: dict[str, Any] = {"fontsize": 10.5, "fontweight": "bold", "va": "top", "ha": "left"}
    figure.text(0.25 / _WIDTH, 1 - 0.15 / height, drawable(title), **bold, **plain_text())
    at = height - _TOP
    for caption, true, guess in blocks:
        figure.add_artist(_rule(at + 0.05, height))
        at = _write(figure, "truth", true, at, height)
        at = _write(figure, "came back", guess, at, height, caption) - _GAP
    save_figure(figure, path)


def _words(tokens: Sequence[int], words: Words) -> list[str]:
    """Each with what stands for it, up to the last that is one."""
    text = words.text(tokens)
    return text.split(" ") if text else []


def _lines(pieces: list[Piece]) -> list[list[Piece]]:
    """Words broken into lines; at least one."""
    lines: list[list[Piece]] = [[]]
    used = 0
    for word, wrong in pieces or [(_NONE, True)]:
        if used + len(word) > _LETTERS and lines[-1]:
            lines.append([])
            used = 0
        lines[-1].append((word, wrong))
        used += len(word) + 1
    return lines


def _rule(at: float, height: float) -> Line2D:
    return Line2D([0.25 / _WIDTH, 1 - 0.25 / _WIDTH], [at / height] * 2, color=FRAME, linewidth=0.6)


def _write(
    figure: Figure, label: str, lines: list[list[Piece]], at: float, height: float, caption: str = ""
) -> float:  # fmt: skip
    """Writes lines from ``at`` downwards, in inches, and returns where they end."""
    plain = plain_text()
    figure.text(0.25 / _WIDTH, at / height, label, fontsize=8, va="top", **plain)
    if caption:
        figure.text(0.25 / _WIDTH, (at - _LINE * 0.85) / height, drawable(caption), fontsize=7, va="top", **plain)
    for line in lines:
        across, base = _LEFT, (at - 0.11) / height
        for word, wrong in line:
            style = plain | _WORD | (_MARKED if wrong else {})
            figure.text(across / _WIDTH, base, drawable(word), **style)
            across += (len(word) + 1) * _LETTER
        at -= _LINE
    return at - (_LINE * 0.4 if caption and len(lines) == 1 else 0.0)
