"""What Skellam noise on an integer grid costs.

Source: Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated Learning", 2021. See
docs/accounting.md. The grid itself, its scale and its noise are in ``harness.secagg``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.privacy.mechanism import Array, Mechanism

if TYPE_CHECKING:
    from harness.secagg import SkellamGrid  # it brings the samplers along, which accounting does not need


@dataclass(frozen=True)
class SkellamSum(Mechanism):
    """Skellam noise on ``scale`` times a sum; all else in the sum's own units.

    Attributes:
        variance: central variance of the noise, >= 0; in integers ``scale`` squared times as much.
        scale: integers per unit, > 0.
        l2, l1: sensitivity in both norms, after rounding.
    """

    variance: float
    scale: float
    l2: float
    l1: float
    title = "the Skellam mechanism"

    @property
    def noiseless(self) -> bool:
        return self.variance == 0

    def divergences(self, highest: int) -> Array:
        orders = np.arange(1, highest + 1)
        s, mu = self.scale, self.variance
        gaussian = orders * self.l2**2 / (2 * mu)
        # The two bounds of the excess over Gaussian noise: for fine grids, and for coarse ones.
        fine = ((2 * orders - 1) * s * self.l2**2 + 6 * self.l1) / (4 * s**3 * mu**2)
        curve = gaussian + np.minimum(fine, 3 * self.l1 / (2 * s * mu))
        curve[0] = curve[1]  # proven for orders above 1
        return curve


def skellam_sum(grid: "SkellamGrid", noisy: int | None = None) -> SkellamSum:
    """The sum of the grid's clients' integers; only ``noisy`` clients' noise counts, all clients' by default.

    A client that colludes can subtract its noise, and one that drops out never sent any.
    """
    count = grid.clients if noisy is None else noisy
    scale = grid.scale
    return SkellamSum(count * grid.variance / scale**2, scale, grid.l2_sensitivity / scale, grid.l1_sensitivity / scale)
