"""Two mechanisms on real numbers: a fixed-point grid without noise, and Gaussian noise."""

import math
from dataclasses import dataclass

import numpy as np

from harness.base.errors import UsageError
from harness.secagg.integers import clip_rows, from_ring, to_ring

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
        """The same numbers."""
        return total
