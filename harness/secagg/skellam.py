"""Symmetric Skellam noise, the difference of two Poisson variables of half the variance each (Agarwal et al. 2021).

The noise of a sum of integers needs variances far above 2^53, where samplers in floating point return no odd integers.
Here the low bits of a large variate are an integer drawn uniformly within a cell of the number line, and rejection
against the exact probability makes the whole Skellam distributed. The distribution drawn is within 1e-11 of Skellam
in total variation: up to 1e-12 from the asymptotic probability, which is best for large variances, the rest from
uniform numbers of 53 bits; what lies beyond 12 standard deviations (3e-33) is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harness.base.errors import UsageError
from harness.secagg.streams import numbers as stream

LARGEST_VARIANCE = 2.0**100
# Below, two Poisson draws are at least as exact: numpy's acceptance test loses digits as its rate grows.
_LARGE = 2.0**12
_REACH = 12  # standard deviations
_CELLS_PER_DEVIATION = 16  # at least; a cell is a power of two wide


def skellam(variance: float, shape: tuple[int, ...], numbers: np.random.Generator) -> np.ndarray:
    """Independent draws as int64 in ``shape``, of mean 0.

    Args:
        variance: 0 to 2^100; each of the two Poisson variables has half of it as its rate.

    Raises:
        UsageError: a variance outside that range.
    """
    if not 0 <= variance <= LARGEST_VARIANCE:
        raise UsageError(f"Skellam noise takes variances from 0 to 2^100, not {variance}; lower the noise or the scale")
    if variance < _LARGE:
        first, second = numbers.poisson(variance / 2, (2, *shape))
        return first - second
    size = math.prod(shape)
    drawn = np.empty(0, dtype=np.int64)
    while drawn.size < size:
        # A few more than are missing: most proposals are accepted.
        drawn = np.concatenate([drawn, _accepted(variance, size - drawn.size + size // 16 + 8, numbers)])
    return drawn[:size].reshape(shape)


def skellam_rows(
    variances: Sequence[float], shape: tuple[int, ...], keys: Sequence[tuple[int | str, ...]]
) -> np.ndarray:
    """Draws (R, *shape) with one variance and one stream per row, so that no row depends on the others."""
    pairs = zip(variances, keys, strict=True)
    return np.stack([skellam(variance, shape, stream(*key)) for variance, key in pairs])


def log_probability(values: np.ndarray, variance: float) -> np.ndarray:
    """Logarithm of the probability e^-v I_j(v) of each integer j, by Debye's expansion of the Bessel function.

    The error is about 0.07 / v^3 (DLMF 10.41.3, terms up to U_2), plus rounding in the last digits.
    """
    place = values.astype(np.float64)
    root = np.hypot(place, variance)
    ratio = (place / root) ** 2
    first = (3 - 5 * ratio) / (24 * root)
    second = (81 - 462 * ratio + 385 * ratio**2) / (1152 * root**2)
    # (root - variance) without its cancellation.
    exponent = place**2 / (root + variance) - place * np.arcsinh(place / variance)
    return exponent - 0.5 * np.log(2 * np.pi * root) + np.log1p(first + second)


@dataclass(frozen=True)
class _Cells:
    """The number line in cells of 2^k integers, with the highest probability of each."""

    width: int
    starts: np.ndarray  # int64, first integer of each
    peaks: np.ndarray  # logarithm of the highest probability in each
    cumulative: np.ndarray  # share of the proposals up to and including each


@lru_cache(maxsize=64)
def _cells(variance: float) -> _Cells:
    deviation = math.sqrt(variance)
    width = 1 << max(0, math.floor(math.log2(deviation / _CELLS_PER_DEVIATION)))
    reach = math.ceil(_REACH * deviation / width)
    starts = np.arange(-reach, reach, dtype=np.int64) * width
    peaks = log_probability(np.where(starts < 0, starts + width - 1, starts), variance)
    cumulative = np.cumsum(np.exp(peaks))
    return _Cells(width, starts, peaks, cumulative / cumulative[-1])


def _accepted(variance: float, count: int, numbers: np.random.Generator) -> np.ndarray:
    cells = _cells(variance)
    chosen = np.searchsorted(cells.cumulative, numbers.random(count), side="right")
    values = cells.starts[chosen] + numbers.integers(0, cells.width, count)
    keep = np.log1p(-numbers.random(count)) <= log_probability(values, variance) - cells.peaks[chosen]
    return values[keep]
