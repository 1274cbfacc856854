"""Vectors on a grid of integers: rotation, scale, rounding, the ring, and the deviation of one client's noise."""

import math

import numpy as np

from harness.base.errors import UsageError
from harness.base.randomness import digest

# The integer grid: how fine it may be so that a sum of noisy vectors fits the ring of integers modulo 2^b.


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


# Real vectors to integer vectors: conditional stochastic rounding and what it does to norms.
#
# Kairouz, Liu, Steinke: The Distributed Discrete Gaussian Mechanism, ICML 2021, section 4.

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


# numpy's random numbers, keyed by what they are for like all others of the harness.
#
# They simulate a client's noise. A deployment that needs the theorem draws them from a cryptographic source instead.


def numbers(*key: int | str) -> np.random.Generator:
    """A generator that is a pure function of ``key`` (for example seed, client, round, step, purpose)."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest(*key)[:16], "big")))


# The randomised Hadamard rotation: spreads a vector evenly over its coordinates, so that all need the same range.


def padded(dimension: int) -> int:
    """The next power of two, the length of a rotated vector."""
    return 1 << (dimension - 1).bit_length()


def random_signs(dimension: int, *key: int | str) -> np.ndarray:
    """The signs (padded dimension,), +1 or -1, that all clients and the server share."""
    return 1.0 - 2.0 * numbers("rotation", *key).integers(0, 2, padded(dimension))


def rotate(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Rows (..., p) padded with zeros, with random signs, in the Hadamard basis (..., d); norms stay."""
    dimension = rows.shape[-1]
    longer = np.zeros((*rows.shape[:-1], signs.size))
    longer[..., :dimension] = rows * signs[:dimension]
    return hadamard(longer)


def unrotate(rows: np.ndarray, signs: np.ndarray, dimension: int) -> np.ndarray:
    """The inverse of :func:`rotate`: rows (..., d) back to (..., p)."""
    return (hadamard(rows) * signs)[..., :dimension]


def hadamard(rows: np.ndarray) -> np.ndarray:
    """The orthonormal Walsh-Hadamard transform over the last axis, a power of two long; it is its own inverse.

    Each pass puts the sums of neighbours in the first half and their differences in the second (Pease, 1968), so all
    passes are alike and read long runs; only additions, so no row depends on how many there are.
    """
    size = rows.shape[-1]
    half = size // 2
    values = rows.astype(np.float64).reshape(-1, size)
    other = np.empty_like(values)
    for _ in range(size.bit_length() - 1):
        np.add(values[:, 0::2], values[:, 1::2], out=other[:, :half])
        np.subtract(values[:, 0::2], values[:, 1::2], out=other[:, half:])
        values, other = other, values
    return values.reshape(rows.shape) / math.sqrt(size)


# How much noise each client adds so that the sum has enough, whoever colludes or drops out.


def local_noise(total: float, clients: int, colluders: int = 0, dropouts: int = 0) -> float:
    """The noise multiplier of each client: total / sqrt(N - colluders - dropouts).

    Colluders can subtract their own noise from the sum, and who drops out never adds any; the noise of the others
    alone must reach the total (docs/defenses.md). The more survive, the more noise there is.

    Args:
        total: noise multiplier of the sum: its standard deviation in units of the clipping bound.

    Raises:
        UsageError: nobody's noise can be relied on.
    """
    reliable = clients - colluders - dropouts
    if min(colluders, dropouts) < 0 or reliable < 1:
        raise UsageError(
            f"with {colluders} colluders and {dropouts} dropouts among {clients} clients nobody's noise is left; "
            "expect fewer of them or take more clients"
        )
    return total / math.sqrt(reliable)
