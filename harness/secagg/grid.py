"""The integer grid: how fine it may be so that a sum of noisy vectors fits the ring of integers modulo 2^b."""

import math

import numpy as np

from harness.base.errors import UsageError


def grid_scale(
    bits: int, dimension: int, clip: float, vectors: int, noise_variance: float, deviations: float = 3.0
) -> float:
    """Steps per unit, s (Kairouz et al. 2021, section 5.2, with rho = 1).

    Half the ring is ``deviations`` standard deviations of a coordinate of the sum, when all vectors point the same
    way and rotation has spread them over the coordinates.

    Args:
        dimension: of the rotated vectors.
        clip: C, bound of each vector's norm.
        vectors: how many are rounded and summed, over clients, examples and steps.
        noise_variance: of all noise in the sum together, per coordinate, in the units of ``clip`` squared.
        deviations: k. The papers take 3 for Skellam noise: where noise dominates, one coordinate in 370 wraps.

    Raises:
        UsageError: the rounding alone overflows the ring.
    """
    room = 4.0**bits - vectors * deviations**2
    spread = (clip * vectors) ** 2 / dimension + noise_variance
    if room <= 0 or spread <= 0:
        raise UsageError(f"{bits} bits cannot hold the rounding of {vectors} vectors; raise bits")
    return math.sqrt(room / spread) / (2 * deviations)


def to_ring(values: np.ndarray, bits: int) -> np.ndarray:
    """Signed integers modulo 2^b, as uint32 (up to 32 bits) or uint64."""
    words = values.astype(np.int64).view(np.uint64) & np.uint64(2**bits - 1)
    return words.astype(np.uint32 if bits <= 32 else np.uint64)


def from_ring(words: np.ndarray, bits: int) -> np.ndarray:
    """Ring elements as int64 in [-2^(b-1), 2^(b-1) - 1]."""
    shift = 64 - bits
    # The sign bit is moved to the top of the word and comes back with its copies.
    return (words.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> np.int64(shift)


def refuse_overflow(total: np.ndarray, summands: np.ndarray, bits: int) -> None:
    """Raises if a decoded sum (d,) is not the plain sum of ``summands`` (N, d): the ring has wrapped around.

    A wrap moves a coordinate by a multiple of 2^b, far more than a sum in floating point is off.

    Raises:
        UsageError: some coordinate wrapped.
    """
    plain = summands.astype(np.float64).sum(axis=0)
    wrapped = int((np.abs(plain - total) >= 2.0 ** (bits - 1)).sum())
    if wrapped:
        raise UsageError(
            f"the sum overflows the ring of {bits} bits in {wrapped} of {total.size} coordinates; "
            "raise bits, or the deviations that the ring must hold"
        )
