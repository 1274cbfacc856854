"""Real vectors in the ring without a calibrated grid: for updates that are private before they are encoded."""

import math
from dataclasses import dataclass

import numpy as np

from harness.base.errors import UsageError
from harness.secagg.grid import from_ring, to_ring

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
