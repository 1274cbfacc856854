"""Gaussian noise in floating point: what the theorem idealises, off every grid."""

from dataclasses import dataclass

import numpy as np

from harness.secagg.rounding import clip_rows


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
