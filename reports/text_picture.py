"""The picture of a cell of texts: of each victim the truth, and below it what came back, wrong tokens marked."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pydantic import TypeAdapter

from harness.base.errors import in_a_row, safe
from harness.base.words import PAD, Words
from harness.reports.pictures import DOTS_PER_INCH, FRAME, drawable, plain_text, save_figure
from harness.results.record import Record

# In inches; a line holds so many letters of a font whose letters are all as wide.
_WIDTH, _LINE, _LETTER, _LEFT, _TOP, _GAP = 9.0, 0.19, 0.0725, 1.2, 0.55, 0.16
_LETTERS = int((_WIDTH - _LEFT - 0.2) / _LETTER)
_WORD: dict[str, Any] = {"fontsize": 8.5, "va": "baseline", "fontfamily": ["DejaVu Sans Mono", "DejaVu Sans"]}
_MARKED: dict[str, Any] = {"color": "#b3261e", "fontweight": "bold"}
_NONE = "(nothing)"

#: What stands in the file beside its pixels: the texts themselves, for pages.
_BESIDE = "texts"
_MOST_TEXTS, _MOST_WORDS, _MOST_LETTERS = 64, 4096, 80

Piece = tuple[str, bool]
"""A word, and whether it is wrong."""


class ShownText(Record):
    """A text beside what came back of it; ``truth`` is None where nobody knows it, or where it stands above."""

    caption: str
    truth: list[str] | None
    made: list[Piece]
    label: str = "came back"


def save_texts(
    path: Path, truth: Sequence[Sequence[int]] | None, made: Sequence[Sequence[int]], words: Words,
    captions: Sequence[str], title: str,
) -> None:  # fmt: skip
    """Write a PNG with two blocks of lines per text, which holds the texts themselves too.

    Args:
        path: where to write; it appears whole or not at all.
        truth, made: token numbers (n, T); the truth is None where nobody knows it.
        words: the vocabulary.
        captions: one per text, such as ``"tokens right 96%"``.
        title: above all of it.

    Raises:
        UsageError: the folder cannot be written.
    """
    texts = [
        _shown(None if truth is None else truth[place], guess, words, caption)
        for place, (guess, caption) in enumerate(zip(made, captions, strict=True))
    ]
    save_shown(path, texts, title)


def save_shown(path: Path, texts: Sequence[ShownText], title: str) -> None:
    """Write the PNG of :func:`save_texts` with texts whose words are known. Raises UsageError."""
    blocks = [(one, [] if one.truth is None else _plain(one.truth), _lines(one.made)) for one in texts]
    lines = sum(len(true) + len(guess) for _, true, guess in blocks)
    height = _TOP + lines * _LINE + len(blocks) * _GAP + 0.3
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    bold: dict[str, Any] = {"fontsize": 10.5, "fontweight": "bold", "va": "top", "ha": "left"}
    figure.text(0.25 / _WIDTH, 1 - 0.15 / height, drawable(title), **plain_text() | bold)
    at = height - _TOP
    for one, true, guess in blocks:
        figure.add_artist(_rule(at + 0.05, height))
        at = _write(figure, "truth", true, at, height) if true else at
        at = _write(figure, one.label, guess, at, height, one.caption) - _GAP
    save_figure(figure, path, DOTS_PER_INCH, **{_BESIDE: json.dumps([one.model_dump() for one in texts])})


def texts_of(beside: Mapping[Any, Any]) -> list[ShownText]:
    """The texts in the file of a picture, by what stands beside its pixels; none where there are none, or too many.

    Who wrote the file is not known.
    """
    try:
        found = TypeAdapter(list[ShownText]).validate_json(beside.get(_BESIDE, "[]"))
    except ValueError:
        return []
    words = sum(len(one.truth or ()) + len(one.made) for one in found)
    return [_tame(one) for one in found] if len(found) <= _MOST_TEXTS and words <= _MOST_WORDS else []


def _tame(text: ShownText) -> ShownText:
    truth = None if text.truth is None else [_seen(word) for word in text.truth]
    made = [(_seen(word), wrong) for word, wrong in text.made]
    return ShownText(caption=safe(text.caption), truth=truth, made=made, label=safe(text.label))


def _shown(truth: Sequence[int] | None, made: Sequence[int], words: Words, caption: str) -> ShownText:
    wrong = [False] * len(made) if truth is None else [one != other for one, other in zip(truth, made, strict=True)]
    pieces = list(zip(_words(made, words), wrong, strict=False))
    return ShownText(caption=caption, truth=None if truth is None else _words(truth, words), made=pieces)


def _words(tokens: Sequence[int], words: Words) -> list[str]:
    """Each with what stands for it, up to the last that is one; marks that nobody sees are spelled out."""
    told = [_seen(words.vocabulary[one]) if one < len(words.vocabulary) else f"[{one}]" for one in tokens]
    ends = max((place for place, one in enumerate(tokens, 1) if one != PAD), default=0)
    return ["\u00b7" if one == PAD else word for one, word in zip(tokens[:ends], told, strict=False)]


def _seen(word: str) -> str:
    spelled = in_a_row(word)
    return spelled if len(spelled) <= _MOST_LETTERS else spelled[: _MOST_LETTERS - 1] + "\u2026"


def _plain(words: Sequence[str]) -> list[list[Piece]]:
    return _lines([(word, False) for word in words])


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
