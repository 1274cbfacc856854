"""Costs of many distances under one bound, read off a table: never too low, and exact at the bound itself.

The log of what Theorem 3 of Triastcyn and Faltings averages is convex in the squared distance, so the chord between two
entries of a table lies above it.
"""

from functools import lru_cache

import numpy as np

from harness.privacy.bayesian import Array, Direction, Samples, log_exponentials

_ENTRIES = 257


def capped_logs(samples: Samples, bound: float, direction: Direction, lambdas: tuple[int, ...]) -> tuple[Array, Array]:
    """``log_exponentials`` of distances up to ``bound``, as an upper bound, and those at ``bound``: (A, m), (A,)."""
    table = _table(samples.sigma, samples.q, bound, direction, lambdas)
    share = np.minimum(np.asarray(samples.distances, dtype=float) / bound, 1.0) ** 2 * (_ENTRIES - 1)
    below = np.minimum(share.astype(int), _ENTRIES - 2)
    part = share - below
    return (1 - part) * table[:, below] + part * table[:, below + 1], table[:, -1]


@lru_cache(maxsize=32)
def _table(sigma: float, q: float, bound: float, direction: Direction, lambdas: tuple[int, ...]) -> Array:
    """Logs at evenly spaced squared distances from 0 to ``bound`` squared: (A, entries)."""
    distances = bound * np.sqrt(np.linspace(0, 1, _ENTRIES))
    return log_exponentials(Samples(distances, sigma, q), direction, lambdas)
