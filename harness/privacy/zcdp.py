"""Zero-concentrated differential privacy (Bun and Steinke 2016; sampled: Yu et al. 2019). See docs/accounting.md.

Without sampling rho = 1/(2 sigma^2) is exact. With sampling the papers use q^2/sigma^2, which holds only for truncated
orders; it is tagged nominal here, and never exceeds the value without sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.privacy.accountant import ACCOUNTANTS, AdditiveAccountant, Array
from harness.privacy.events import GaussianRelease, Ledger, MechanismRelease, plain_gaussian


@ACCOUNTANTS.register("zcdp")
@dataclass(frozen=True)
class ZeroConcentrated(AdditiveAccountant):
    """Adds rho up and converts it by epsilon = rho + 2 sqrt(rho ln(1/delta))."""

    name = "zcdp"

    @property
    def conversion(self) -> str:
        return "rho + 2 sqrt(rho ln(1/delta))"

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        if not any(release.sampled for release in spent.releases):
            return ()
        return ("nominal: rho = q^2/sigma^2 under sampling is an approximation for bounded orders",)

    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        gaussian = plain_gaussian(releases)
        sigmas = np.array([release.sigma for release in gaussian])
        squared_rates = np.array([release.q**2 if release.sampled else 0.5 for release in gaussian])
        return (np.minimum(squared_rates, 0.5) / sigmas**2)[:, None]

    def converted(self, total: Array, delta: float) -> float:
        rho = float(total[0])
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))
