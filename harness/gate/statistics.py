"""Permutation tests of one cell; over all of them goes Holm's correction (:mod:`harness.scoring.multiplicity`).

Same victims in both runs are paired: under the null hypothesis each difference may as well have the other sign. Other
victims are two samples: under the null hypothesis any of them may as well have stood in the other run. Both tests are
exact whatever the distribution, which a re-run with other seeds needs as much as one with the same.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

from harness.base.randomness import derive_seed

# The first permutations clear most cells; the many resolve p-values that survive a correction over hundreds of cells.
_FEW, _MANY = 9_999, 399_999
_SUSPICIOUS = 0.05
_BLOCK = 20_000

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PValues:
    """One-sided p-values: of numbers having gone ``up``, and of having gone ``down``."""

    up: float
    down: float


def paired_test(differences: Values) -> PValues:
    """The sign-flip test of differences (V,): is their mean other than 0?"""
    # A sum with signs is twice that of the positive ones, less that of all.
    return _permutation_test(differences, np.ones(len(differences), np.uint8), "signs")


def two_sample_test(old: Values, new: Values) -> PValues:
    """The permutation test of two samples: is the mean of ``new`` other than that of ``old``?"""
    # With the number in each given, the difference of means grows with the sum of the new one.
    chosen = np.concatenate([np.zeros(len(old), np.uint8), np.ones(len(new), np.uint8)])
    return _permutation_test(np.concatenate([old, new]), chosen, "samples")


def _permutation_test(values: Values, chosen: NDArray[np.uint8], kind: str) -> PValues:
    """Where the sum of the ``chosen`` values stands among those of random signs or of shuffled samples."""
    observed = chosen @ values
    # Sums of the same numbers in another order may differ by rounding: count those as ties.
    tolerance = 1e-6 * np.abs(values).sum() + 1e-12
    for count in (_FEW, _MANY):
        up = down = 1
        for block in _assignments(chosen.tobytes(), kind, count):
            null = block.astype(np.float32) @ values.astype(np.float32)
            up += int((null >= observed - tolerance).sum())
            down += int((null <= observed + tolerance).sum())
        result = PValues(up / (count + 1), down / (count + 1))
        if min(result.up, result.down) > _SUSPICIOUS:
            break
    return result


@lru_cache(maxsize=4)
def _assignments(chosen: bytes, kind: str, count: int) -> list[NDArray[np.uint8]]:
    """``count`` random assignments (M, V) in blocks. Cells share them, which Holm's correction allows."""
    random = np.random.default_rng(derive_seed("gate", kind, len(chosen), count))
    row = np.frombuffer(chosen, np.uint8)
    return [
        random.integers(0, 2, (size, len(row)), dtype=np.uint8)
        if kind == "signs"
        else random.permuted(np.tile(row, (size, 1)), axis=1)
        for size in (min(_BLOCK, count - start) for start in range(0, count, _BLOCK))
    ]


def fisher_test(old: int, of_old: int, new: int, of_new: int) -> PValues:
    """Fisher's exact test of two success counts."""
    total, hits = of_old + of_new, old + new
    return PValues(
        float(hypergeom.sf(new - 1, total, hits, of_new)),
        float(hypergeom.cdf(new, total, hits, of_new)),
    )
