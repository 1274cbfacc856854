"""Metrics of texts, token by token: exact, at its place, and ROUGE-N (Lin, 2004), how many runs of N tokens are shared.

Tokens are those of the vocabulary, so every script counts.
"""

from collections import Counter
from functools import partial

import numpy as np
from torch import Tensor

from harness.base.words import PAD, tokens_of
from harness.scoring.images import exact_pixels
from harness.scoring.metrics import Metric, Pairs, TextScale, Values, register


def rouge(truth: Tensor, made: Tensor, length: int) -> Values:
    """F of shared runs of tokens, 0 to 1: (I,), as the library ``rouge-score`` computes it of the same tokens.

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
    return 2 * (true & found).total() / (true.total() + found.total())


#: Texts with more pairs of a token and a place than this share of a network's width fill the space of their vectors.
CROWDED = 0.9


def crowding(texts: Tensor, width: Values) -> dict[str, Values]:
    """Return how many pairs of a token and a place batches of texts (R, n, 1, BITS, T) have, and whether these are
    crowded.

    Args:
        width: (R,), how many numbers a vector of a token has.

    Returns:
        ``pairs`` (R,), and ``crowded`` (R,), 1 or 0: see :data:`CROWDED`.
    """
    batches = tokens_of(exact_pixels(texts))
    pairs = np.array([sum(len(set(_there(column))) for column in batch.T) for batch in batches], dtype=np.float64)
    return {"pairs": pairs, "crowded": (pairs > CROWDED * width).astype(np.float64)}


def _told(pairs: Pairs) -> Values:
    assert isinstance(pairs.scale, TextScale)
    return pairs.scale.told(pairs.truth, pairs.made)


def _rouge(pairs: Pairs, length: int) -> Values:
    return rouge(tokens_of(exact_pixels(pairs.truth)), tokens_of(exact_pixels(pairs.made)), length)


register(
    # 1 where every token is right, in order.
    Metric(
        name="text_exact", measure=lambda pairs: (pairs.mse == 0).astype(np.float64), of="texts", title="exact",
        digits=None, low_leaks=False, in_victims=True,
    ),
    # Share of a text's tokens that stand at their place.
    Metric(
        name="tokens_right", measure=_told, of="texts", title="tokens", digits=None, low_leaks=False, in_victims=True,
    ),
    # F of shared tokens, wherever they stand, and of shared neighbours.
    *(
        Metric(
            name=f"rouge{length}", measure=partial(_rouge, length=length), of="texts", title=f"ROUGE-{length}",
            low_leaks=False, in_victims=True,
        )
        for length in (1, 2)
    ),
)  # fmt: skip
