"""Real vectors to integer vectors: conditional stochastic rounding and what it does to norms.

Kairouz, Liu, Steinke: The Distributed Discrete Gaussian Mechanism, ICML 2021, section 4.
"""

import math

import numpy as np

from harness.base.errors import UsageError

BETA = math.exp(-0.5)
# Each attempt is accepted with probability 1 - beta or more.
_MOST_ATTEMPTS = 1000


def clip_rows(rows: np.ndarray, clip: float) -> np.ndarray:
    """Rows (R, p) with norms of at most ``clip``; shorter rows stay as they are."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows * (clip / np.maximum(norms, clip))


def inflated_norm(norm: float, dimension: int, beta: float = BETA) -> float:
    """The L2 norm that a rounded vector may have: at most this, and reached with probability 1 - beta or more.

    Args:
        norm: bound of the vector before rounding, in units of the grid (s C).
        dimension: of the padded vector.
        beta: in (0, 1), the chance at most of rounding once more.
    """
    root = math.sqrt(dimension)
    likely = norm**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def l1_norm(l2_norm: float, dimension: int) -> float:
    """The L1 norm that an integer vector of that L2 norm may have."""
    return min(math.sqrt(dimension) * l2_norm, l2_norm**2)


def stochastic_round(rows: np.ndarray, bound: float, numbers: np.random.Generator) -> np.ndarray:
    """Rows (R, d) rounded up or down, right on average, as int64; rows beyond ``bound`` are rounded again.

    Raises:
        UsageError: a row whose norm no rounding brings below the bound.
    """
    rounded = np.empty(rows.shape, dtype=np.int64)
    waiting = np.arange(len(rows))
    for _ in range(_MOST_ATTEMPTS):
        below = np.floor(rows[waiting])
        tried = below + (numbers.random(below.shape) < rows[waiting] - below)
        fits = np.linalg.norm(tried, axis=-1) <= bound * (1 + 1e-12)
        rounded[waiting[fits]] = tried[fits].astype(np.int64)
        waiting = waiting[~fits]
        if not waiting.size:
            return rounded
    raise UsageError(f"a vector of norm {np.linalg.norm(rows[waiting[0]]):g} cannot be rounded to norm {bound:g}")
