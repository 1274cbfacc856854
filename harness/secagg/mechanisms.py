"""Mechanisms of sums: a fixed-point grid, Gaussian noise, Skellam noise, and the Poisson-binomial mechanism."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from harness.base.errors import UsageError
from harness.secagg.integers import (
    BETA,
    clip_rows,
    from_ring,
    grid_scale,
    inflated_norm,
    l1_norm,
    rotate,
    stochastic_round,
    to_ring,
    unrotate,
)

# Two mechanisms on real numbers: a fixed-point grid without noise, and Gaussian noise.

FINEST = 2.0**20


@dataclass(frozen=True)
class FixedPoint:
    """Numbers of at most ``bound`` as multiples of 1/scale modulo 2^b, such that a sum of N cannot overflow.

    Attributes:
        bits: b, 1 to 64.
        scale: steps per unit, a power of two.
        bound: largest absolute value of a coordinate.
    """

    bits: int
    scale: float
    bound: float

    @classmethod
    def fitting(cls, bits: int, bound: float, clients: int) -> "FixedPoint":
        """The finest encoding, up to 2^20 steps per unit, in which N vectors within ``bound`` fit.

        Raises:
            UsageError: they do not even fit with one step for the whole bound.
        """
        if not (math.isfinite(bound) and bound > 0):
            raise UsageError(f"the bound of an update's coordinates must be positive and finite, not {bound}")
        # Rounding adds at most one half per client.
        room = 2.0 ** (bits - 1) - clients
        if room / clients < 1:
            raise UsageError(f"{bits} bits cannot hold the sum of {clients} updates; raise bits")
        return cls(bits, min(FINEST, 2.0 ** math.floor(math.log2(room / (clients * bound)))), bound)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Ring elements of rows (N, d), rounded to the nearest step.

        Raises:
            UsageError: a coordinate beyond the bound, or not finite; nothing is encoded.
        """
        largest = float(np.abs(rows).max(initial=0.0))
        if not largest <= self.bound:
            raise UsageError(f"an update has a coordinate of {largest:g}, beyond its bound {self.bound:g}; raise it")
        return to_ring(np.rint(rows * self.scale), self.bits)

    def decode(self, words: np.ndarray) -> np.ndarray:
        """The real numbers of ring elements."""
        return from_ring(words, self.bits) / self.scale


# Gaussian noise in floating point: what the theorem idealises, off every grid.


@dataclass(frozen=True)
class Gaussian:
    """Noise that one client adds to the sum of its clipped vectors.

    Attributes:
        dimension: p, length of the vectors.
        clip: C, bound of the norm of each vector.
        noise: sigma_i, the client's noise multiplier.
    """

    dimension: int
    clip: float
    noise: float

    @property
    def length(self) -> int:
        """Numbers per vector."""
        return self.dimension

    @property
    def deviation(self) -> float:
        """Standard deviation of the client's noise per coordinate."""
        return self.noise * self.clip

    @property
    def levels(self) -> tuple[float, float]:
        """Least and largest standard deviation of a coordinate, whatever is encoded: the same."""
        return self.deviation, self.deviation

    def encode(self, rows: np.ndarray, numbers: np.random.Generator) -> np.ndarray:
        """The noisy sum (p,) of rows (B, p), each clipped to C."""
        clipped = clip_rows(np.asarray(rows, dtype=np.float64), self.clip)
        return clipped.sum(axis=0) + self.deviation * numbers.standard_normal(self.dimension)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Return the numbers unchanged."""
        return total


# The Poisson-binomial mechanism: a coordinate becomes a count of coin tosses whose bias encodes it.
#
# Chen, Ozgur, Kairouz: The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation, ICML
# 2022.


@dataclass(frozen=True, eq=False)
class PoissonBinomial:
    """The noise is the tosses' own: nothing is added, and an absent vector tosses fair coins.

    Attributes:
        dimension: p, length of the vectors.
        clip: C, bound of the norm of each vector.
        trials: m, tosses per coordinate.
        theta: in (0, 1/4], how far the bias goes from one half.
        signs: of the rotation (padded dimension,); None goes without rotation.
        spread: K0; rotated coordinates are cut to C K0 / sqrt(d), beyond which few of them lie.
        slots: vectors that a client encodes at least; missing ones are replaced by zeros.
        tossed: whether coins are tossed; else each count is its mean, rounded: the same, cut alike, without the noise.
    """

    dimension: int
    clip: float
    trials: int = 64
    theta: float = 0.25
    signs: np.ndarray | None = None
    spread: float = 2.0
    slots: int = 1
    tossed: bool = True

    def __post_init__(self) -> None:
        if not (self.trials >= 1 and 0 < self.theta <= 0.25 and self.spread > 0 and self.slots >= 1):
            raise UsageError(
                "Poisson-binomial takes trials of 1 and more, theta above 0 and up to 0.25, a positive spread and slots"
            )

    @property
    def length(self) -> int:
        """Integers per vector."""
        return self.dimension if self.signs is None else self.signs.size

    @property
    def bound(self) -> float:
        """c, the largest absolute value of a coordinate that is encoded as it is."""
        return self.clip if self.signs is None else self.clip * self.spread / math.sqrt(self.length)

    @property
    def deviation(self) -> float:
        """Standard deviation, at most, of a client's decoded coordinate: c / (2 theta sqrt m) for each slot."""
        if not self.tossed:
            return 0.0
        return self.bound * math.sqrt(self.slots) / (2 * self.theta * math.sqrt(self.trials))

    @property
    def levels(self) -> tuple[float, float]:
        """Least and largest standard deviation of a decoded coordinate: tosses are surer the larger what they encode.

        Rotation shares the vector's length among all coordinates; without it one may have all of it.
        """
        filled = 1.0 if self.signs is None else min(1.0, self.clip**2 / (self.length * self.bound**2))
        return self.deviation * math.sqrt(1 - 4 * self.theta**2 * filled), self.deviation

    def require_ring(self, bits: int, clients: int) -> None:
        """Raises:
        UsageError: counts of that many clients would overflow the ring.
        """
        if 2 * self.trials * self.slots * clients >= 2**bits:
            raise UsageError(
                f"{bits} bits cannot hold {self.trials} tosses for {self.slots * clients} vectors; raise bits"
            )

    def encode(self, rows: np.ndarray, numbers: np.random.Generator) -> np.ndarray:
        """Heads minus tails (length,) over all tosses for rows (B, p), each clipped to C and cut to c."""
        absent = np.zeros((max(0, self.slots - len(rows)), self.length))
        values = np.concatenate([np.clip(self._turned(rows), -self.bound, self.bound), absent])
        if not self.tossed:
            return np.rint(2 * self.trials * self.theta * values / self.bound).astype(np.int64).sum(axis=0)
        heads = numbers.binomial(self.trials, 0.5 + self.theta * values / self.bound)
        return (2 * heads - self.trials).sum(axis=0)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Unbiased estimates (..., p) of sums of vectors from sums of counts (..., length)."""
        values = total * self.bound / (2 * self.trials * self.theta)
        return values if self.signs is None else unrotate(values, self.signs, self.dimension)

    def residual(self, rows: np.ndarray) -> float:
        """Return what cutting coordinates to c takes away, as a share of the clipped rows' norm."""
        turned = self._turned(rows)
        cut = turned - np.clip(turned, -self.bound, self.bound)
        return float(np.linalg.norm(cut) / max(np.linalg.norm(turned), np.finfo(np.float64).tiny))

    def _turned(self, rows: np.ndarray) -> np.ndarray:
        clipped = clip_rows(np.asarray(rows, dtype=np.float64), self.clip)
        return clipped if self.signs is None else rotate(clipped, self.signs)


# Symmetric Skellam noise, the difference of two Poisson variables of half the variance each (Agarwal et al. 2021).
#
# The noise of a sum of integers needs variances far above 2^53, where samplers in floating point return no odd
# integers. Here the low bits of a large variate are an integer drawn uniformly within a cell of the number line, and
# rejection against the exact probability makes the whole Skellam distributed. The distribution drawn is within 1e-11
# of Skellam in total variation: up to 1e-12 from the asymptotic probability, which is best for large variances, the
# rest from uniform numbers of 53 bits; what lies beyond 12 standard deviations (3e-33) is left out.

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


# A client's clipped vectors as noisy integers: rotate, scale, round, add Skellam noise (docs/defenses.md).
#
# Agarwal, Kairouz, Liu: The Skellam Mechanism for Differentially Private Federated Learning, NeurIPS 2021.


@dataclass(frozen=True, eq=False)
class SkellamGrid:
    """The grid that all clients share, and the noise that one client adds each step.

    Attributes:
        dimension: p, length of the vectors.
        clip: C, bound of the norm of each vector (an example's gradient).
        noise: sigma_i, the client's noise multiplier.
        clients: N, whose integers are summed.
        bits: b of the ring.
        signs: of the rotation (padded dimension,); None goes without rotation.
        rows: vectors that one client encodes at a time, as expected beforehand: its batch.
        steps: how many of a client's noisy sums are added up in the ring.
        deviations: k, how many standard deviations half the ring holds; 3 in the papers, which let some wrap around.
        beta: chance at most of rounding a vector once more.
    """

    dimension: int
    clip: float
    noise: float
    clients: int
    bits: int = 32
    signs: np.ndarray | None = None
    rows: int = 1
    steps: int = 1
    deviations: float = 3.0
    beta: float = BETA

    @property
    def length(self) -> int:
        """Integers per vector."""
        return self.dimension if self.signs is None else self.signs.size

    @cached_property
    def scale(self) -> float:
        """s, steps of the grid per unit."""
        variance = self.clients * self.steps * (self.noise * self.clip) ** 2
        vectors = self.clients * self.steps * self.rows
        return grid_scale(self.bits, self.length, self.clip, vectors, variance, self.deviations)

    @cached_property
    def l2_sensitivity(self) -> float:
        """Largest norm of a rounded vector, in steps of the grid."""
        return inflated_norm(self.scale * self.clip, self.length, self.beta)

    @property
    def l1_sensitivity(self) -> float:
        """Largest sum of a rounded vector's absolute values, in steps of the grid."""
        return l1_norm(self.l2_sensitivity, self.length)

    @property
    def variance(self) -> float:
        """Variance of the client's noise per step and coordinate, in steps of the grid squared: sigma_i^2 times
        sensitivity^2.

        Equal to s^2 (sigma_i C)^2 (inflated / (s C))^2: rounding lengthens vectors, and the noise keeps up.
        """
        return (self.noise * self.l2_sensitivity) ** 2

    @property
    def deviation(self) -> float:
        """Standard deviation of the client's noise per step and coordinate, in the units of the vectors."""
        return math.sqrt(self.variance) / self.scale

    @property
    def levels(self) -> tuple[float, float]:
        """Least and largest standard deviation of a decoded coordinate: rounding adds up to 1/4 a vector to it."""
        return self.deviation, math.sqrt(self.variance + self.rows / 4) / self.scale

    def encode(self, rows: np.ndarray, numbers: np.random.Generator) -> np.ndarray:
        """The noisy integer sum (length,) of rows (B, p), each clipped to C; noise is there for B = 0, too."""
        clipped = clip_rows(np.asarray(rows, dtype=np.float64), self.clip)
        turned = clipped if self.signs is None else rotate(clipped, self.signs)
        rounded = stochastic_round(self.scale * turned, self.l2_sensitivity, numbers)
        return rounded.sum(axis=0) + skellam(self.variance, (self.length,), numbers)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Integers (..., length), one client's or a sum, in the units of the vectors (..., p)."""
        values = total / self.scale
        return values if self.signs is None else unrotate(values, self.signs, self.dimension)
