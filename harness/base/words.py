"""Meaning of the numbers of a text: the public vocabulary whose numbers are written down bit by bit.

A text of T places is an image (1, BITS, T) of zeros and ones: column t holds the bits of the number of token t, the
lowest first. So texts go wherever images go, two texts are equal exactly where their images are, and no precision
loses a token. Number 0 is no token: it fills the places behind a text's end.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.base.errors import UsageError

BITS = 16
PAD, UNKNOWN = 0, 1
#: Tokens that a network without a tokenizer of its own knows, and so the words that own texts are written in.
MOST_WORDS = 1024
#: What stands for these two in a vocabulary.
MARKS = ("[pad]", "[unknown]")
_PIECE = re.compile(r"\w+|[^\w\s]")


def images_of(tokens: Tensor) -> Tensor:
    """Images (..., 1, BITS, T) of token numbers (..., T) in 0 .. 2^BITS - 1."""
    places = torch.arange(BITS, device=tokens.device)[:, None]
    return ((tokens[..., None, :].long() >> places) & 1).float()[..., None, :, :]


def tokens_of(images: Tensor) -> Tensor:
    """Token numbers (..., T) of images (..., 1, BITS, T); anything above one half counts as a bit that is set."""
    values = 2 ** torch.arange(BITS, device=images.device)
    return ((images[..., 0, :, :] > 0.5).long() * values[:, None]).sum(-2)


def without_empty_places(images: Tensor) -> Tensor:
    """Texts (N, 1, BITS, T) up to the last place where one of them has a token; at least one place."""
    there = (images > 0.5).flatten(0, 2).any(0).nonzero()
    return images[..., : int(there[-1]) + 1 if len(there) else 1]


class TextShape(tuple[int, int, int]):
    """The shape (1, BITS, T) of texts, which also says how many token numbers there are.

    Attributes:
        vocabulary: that number.
    """

    vocabulary: int

    def __new__(cls, vocabulary: int, places: int) -> "TextShape":
        made = super().__new__(cls, (1, BITS, places))
        made.vocabulary = vocabulary
        return made

    @property
    def places(self) -> int:
        """T, most tokens of a text."""
        return self[2]

    def drawn(self, texts: int, generator: torch.Generator) -> Tensor:
        """So many made-up texts (N, 1, BITS, T), each of another length."""
        tokens = torch.randint(PAD + 1, self.vocabulary, (texts, self.places), generator=generator)
        lengths = self.places - torch.arange(texts)[:, None] % self.places
        return images_of(tokens.where(torch.arange(self.places) < lengths, PAD))

    def __getnewargs__(self) -> tuple[int, int]:
        return self.vocabulary, self[2]


@dataclass(frozen=True)
class Words:
    """A vocabulary: token number k is ``vocabulary[k]``; the first two are :data:`MARKS`."""

    vocabulary: tuple[str, ...]

    @property
    def unknown(self) -> int | None:
        """The number of whatever is not in the vocabulary; None where there is nothing that is not."""
        return UNKNOWN

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.vocabulary)}

    def tokens(self, texts: Sequence[str], places: int) -> Tensor:
        """Token numbers (N, places) of texts, what is longer cut off. Words are split from punctuation."""
        rows = torch.full((len(texts), places), PAD)
        for row, text in zip(rows, texts, strict=True):
            found = [self.numbers.get(piece, UNKNOWN) for piece in pieces(text)][:places]
            row[: len(found)] = torch.tensor(found, dtype=torch.long)
        return rows

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has, if none is cut off."""
        return [len(pieces(text)) for text in texts]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token numbers, without the places behind its end."""
        told = [self.vocabulary[one] if one < len(self.vocabulary) else f"[{one}]" for one in tokens]
        while told and told[-1] == MARKS[PAD]:
            told.pop()
        return " ".join(told)


def most_frequent(texts: Iterable[str]) -> Words:
    """The vocabulary of some texts: their most frequent words, in alphabetical order where they are as frequent."""
    counts = Counter(piece for text in texts for piece in pieces(text))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return Words((*MARKS, *ordered[: MOST_WORDS - len(MARKS)]))


def pieces(text: str) -> list[str]:
    """Words and punctuation marks of a text, in order."""
    return _PIECE.findall(text)


def require_texts_for(model: str, known: int | None, words: Words | None) -> None:
    """A network reads texts where the data are texts, and knows as many tokens as their vocabulary has.

    Args:
        model: its name. known: how many tokens it knows; None for one that reads images.
        words: the data's vocabulary; None for images and tables.

    Raises:
        UsageError: one of the two is of another kind.
    """
    if known is None and words is not None:
        raise UsageError(f"model {model!r} reads images, and the data are texts; use --model text_transformer")
    if known is not None and words is None:
        raise UsageError(f"model {model!r} reads texts, and the data are none; use --dataset notes, or another --model")
    if known is not None and words is not None and len(words.vocabulary) > known:
        raise UsageError(
            f"model {model!r} knows {known} tokens, and the data's vocabulary has {len(words.vocabulary)}; use the "
            "vocabulary that belongs to the model"
        )
