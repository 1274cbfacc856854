"""A client's clipped vectors as noisy integers: rotate, scale, round, add Skellam noise (docs/defenses.md).

Agarwal, Kairouz, Liu: The Skellam Mechanism for Differentially Private Federated Learning, NeurIPS 2021.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.secagg.grid import grid_scale
from harness.secagg.rotation import rotate, unrotate
from harness.secagg.rounding import BETA, clip_rows, inflated_norm, l1_norm, stochastic_round
from harness.secagg.skellam import skellam


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
        """Of the client's noise per step and coordinate, in steps of the grid squared: sigma_i^2 times sensitivity^2.

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
