"""Renyi differential privacy, also known as the moments accountant. See docs/accounting.md.

Conversions: ``mironov`` (Mironov 2017, what the papers print) and ``improved`` (Balle et al. 2020, Canonne et al.
2020, what today's libraries print; about a fifth smaller). Never compare one with the other.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from harness.base.errors import UsageError
from harness.privacy import renyi_curves
from harness.privacy.accountant import ACCOUNTANTS, NOMINAL, AdditiveAccountant, Array, choice, one_thread, rounded_down
from harness.privacy.events import Event, GaussianRelease, Ledger, MechanismRelease, plain_gaussian
from harness.privacy.mechanism import curve_of
from harness.privacy.renyi_curves import AMPLIFICATIONS, Amplification, Orders, amplified, between_integers

Conversion = Literal["mironov", "improved"]
CONVERSIONS: tuple[Conversion, ...] = get_args(Conversion)

# The released accounting script of Wei et al. uses these; the gap between 63 and 128 inflates small epsilons.
PAPER_ORDERS = (1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 128, 256, 512)
DENSE_ORDERS = (
    *(1 + hundredth / 100 for hundredth in range(1, 10)), *(tenth / 10 for tenth in range(11, 110)),
    *range(11, 256), 256, 512, 1024,
)  # fmt: skip
ORDERS: dict[str, tuple[float, ...]] = {"paper": PAPER_ORDERS, "dense": DENSE_ORDERS}


@ACCOUNTANTS.register("rdp", "ma")
@dataclass(frozen=True)
class Renyi(AdditiveAccountant):
    """Adds Renyi divergences up per order and converts at the best one.

    Attributes:
        conversion_rule: ``mironov`` or ``improved``.
        orders: ``paper``, ``dense``, or orders above 1 of one's own.
        amplification: what Poisson sampling does for mechanisms other than Gaussian: ``steinke`` or ``zhu-wang``.
        grid: with more distinct sigmas than this under one sampling rate, sigmas are rounded down into so many
            groups, which gives a slightly larger, still rigorous epsilon; None computes every sigma exactly.
    """

    name = "rdp"
    conversion_rule: Conversion = "improved"
    orders: str | tuple[float, ...] = "dense"
    grid: int | None = 256
    amplification: Amplification = "steinke"

    def __post_init__(self) -> None:
        choice(self.conversion_rule, CONVERSIONS, "conversion")
        choice(self.amplification, AMPLIFICATIONS, "amplification")
        if isinstance(self.orders, str):
            choice(self.orders, tuple(ORDERS), "set of orders")
        elif not self.orders or min(self.orders) <= 1:
            raise UsageError("Renyi orders must lie above 1; choose paper or dense")

    @property
    def conversion(self) -> str:
        return self.conversion_rule

    @property
    def _orders(self) -> Array:
        return np.asarray(ORDERS[self.orders] if isinstance(self.orders, str) else self.orders, dtype=float)

    def covers(self, release: MechanismRelease) -> bool:
        return True

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        own = self.orders if isinstance(self.orders, str) else "own"
        notes = [f"{own} orders"]
        kinds = {(release.sampler, release.adjacency) for release in spent.releases if release.sampled}
        if ("poisson", "replace") in kinds:
            notes.append(f"{NOMINAL}: the Poisson formula is proven for add/remove, not for replace-one")
        if self.grid is not None and len(spent.releases) > self.grid:
            notes.append(f"sigmas rounded down into {self.grid} groups (an upper bound)")
        notes += [note for release in spent.mechanisms for note in release.mechanism.notes]
        return tuple(dict.fromkeys(notes))

    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        curves = np.zeros((len(releases), len(self._orders)))
        rows = defaultdict(list)
        for row, release in enumerate(releases):
            if isinstance(release, MechanismRelease):
                curves[row] = self._curve(release)
                continue
            rows[(release.q, release.sampler) if release.sampled else (1.0, "none")].append(row)
        for (q, sampler), members in rows.items():
            sigmas = np.array([releases[row].sigma for row in members])
            distinct, place = np.unique(rounded_down(sigmas, self.grid), return_inverse=True)
            curves[members] = self._curves(distinct, q, sampler)[place]
        return curves

    def _curve(self, release: MechanismRelease) -> Array:
        """Return what one release by any mechanism costs: (A,)."""
        curve = curve_of(release.mechanism, math.ceil(max(self._orders)))
        if release.sampler != "none" and release.sampled:
            curve = amplified(curve, release.q, release.sampler, self.amplification)
        return between_integers(curve, self._orders)

    def _curves(self, sigmas: Array, q: float, sampler: str) -> Array:
        if sampler == "none":
            return renyi_curves.gaussian(sigmas, self._orders)
        return _sampled_curves(tuple(sigmas.tolist()), q, sampler, tuple(self._orders.tolist()))

    def converted(self, total: Array, delta: float) -> float:
        return epsilon_of_curve(total, self._orders, delta, self.conversion_rule)

    @one_thread
    def delta(self, event: Event, epsilon: float) -> float:
        spent = self.ledger(event)
        if spent.unprotected:
            return 1.0
        if not spent.releases:
            return 0.0
        counts = np.array([release.count for release in spent.releases], dtype=float)
        return delta_of_curve(
            counts @ self.costs(spent.releases, 0.5), self._orders, epsilon, self.conversion_rule
        )  # what a release costs does not depend on delta


@lru_cache(maxsize=64)
def _sampled_curves(sigmas: tuple[float, ...], q: float, sampler: str, orders: tuple[float, ...]) -> Array:
    """Return what sampled releases cost: (S, A). Kept, as a run asks for the same after every round, of every view."""
    curves = renyi_curves.poisson if sampler == "poisson" else renyi_curves.without_replacement
    found = curves(np.array(sigmas), q, orders)
    found.flags.writeable = False
    return found


def epsilon_of_curve(curve: Array, orders: Orders, delta: float, rule: Conversion = "improved") -> float:
    """The epsilon, at least 0, of divergences (A,) at ``orders`` (A,)."""
    orders = np.asarray(orders, dtype=float)
    epsilons = curve - math.log(delta) / (orders - 1)
    if rule == "improved":
        epsilons = epsilons + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    return max(0.0, float(np.min(np.where(np.isnan(epsilons), np.inf, epsilons))))


def delta_of_curve(curve: Array, orders: Orders, epsilon: float, rule: Conversion = "improved") -> float:
    """The delta, at most 1, of divergences (A,) at ``orders`` (A,) at a fixed ``epsilon``."""
    orders = np.asarray(orders, dtype=float)
    logs = (orders - 1) * (curve - epsilon)
    if rule == "improved":
        logs = logs + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    return min(1.0, math.exp(min(0.0, float(np.min(np.where(np.isnan(logs), np.inf, logs))))))


# Zero-concentrated differential privacy (Bun and Steinke 2016; sampled: Yu et al. 2019). See docs/accounting.md.
#
# Without sampling rho = 1/(2 sigma^2) is exact. With sampling the papers use q^2/sigma^2, which holds only for
# truncated orders; it is tagged nominal here, and never exceeds the value without sampling.


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
