"""ROUGE-N (Lin, 2004): how many runs of N tokens two texts share. Tokens are those of the vocabulary, in any script."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.base.words import PAD


def rouge(truth: Tensor, made: Tensor, length: int) -> NDArray[np.float64]:
    """F of shared runs of tokens, 0 to 1: (I,), as the library ``rouge-score`` computes it.

    A run that stands several times counts as often as in the text that has fewer. Of a text with fewer tokens than a
    run, all its tokens are the run, so that a copy has 1; the library has 0 there.

    Args:
        truth, made: token numbers (I, T); filled places do not count.
        length: tokens of a run, 1 or more.
    """
    return np.array([_shared(_there(one), _there(other), length) for one, other in zip(truth, made, strict=True)])


def _there(text: Tensor) -> list[int]:
    return [token for token in text.tolist() if token != PAD]


def _shared(truth: list[int], made: list[int], length: int) -> float:
    if not truth:
        return float(not made)
    length = min(length, len(truth))
    true, found = (Counter(zip(*(text[start:] for start in range(length)), strict=False)) for text in (truth, made))
    both = true.total() + found.total()
    return 2 * (true & found).total() / both
