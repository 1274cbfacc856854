"""Privacy loss distributions, by dp-accounting: numerically tight, an upper bound (connect-the-dots discretisation).

Sources: Koskela, Jälkö, Honkela 2020; Doroshenko et al. 2022; for those of single releases, ``harness.privacy.losses``.
See docs/accounting.md.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from harness.privacy.accountant import ACCOUNTANTS, Accountant
from harness.privacy.events import Event, GaussianRelease, Ledger, MechanismRelease, compose, plain_gaussian
from harness.privacy.gaussian import gaussian_delta, gaussian_epsilon
from harness.privacy.losses import inner_gaussian, release_losses, with_everybody
from harness.privacy.rdp import Renyi
from harness.privacy.rounding import rounded_down

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# Distributions of larger losses take gigabytes; those are bounded by Renyi curves and by the same noise unsampled.
_LARGEST_EPSILON = 100.0
_BUCKETS = 100_000


@ACCOUNTANTS.register("pld")
@dataclass(frozen=True)
class PrivacyLoss(Accountant):
    """Composes the distributions of the privacy loss itself.

    Attributes:
        grid: with more distinct sigmas than this, sigmas are rounded down into so many groups (an upper bound).
        interval: width of the loss buckets; widened where losses are huge.
    """

    name = "pld"
    grid: int = 256
    interval: float = 1e-4

    @property
    def conversion(self) -> str:
        return "loss distribution"

    @property
    def _bound(self) -> Renyi:
        return Renyi(orders="paper", grid=self.grid)  # few orders: it only has to be quick

    def covers(self, release: MechanismRelease) -> bool:
        return not release.sampled and inner_gaussian(release.mechanism) is not None

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        notes = []
        if len(spent.releases) > self.grid:
            notes.append(f"sigmas rounded down into {self.grid} groups (an upper bound)")
        if self._too_large(spent, delta):
            notes.append(
                f"above {_LARGEST_EPSILON:g} the smaller of the Renyi bound and the exact value without sampling"
            )
        return tuple(notes)

    def _too_large(self, spent: Ledger, delta: float) -> bool:
        return _rough_epsilon(self._bound, spent, delta) > _LARGEST_EPSILON

    def epsilon_of(self, spent: Ledger, delta: float) -> float:
        if self._too_large(spent, delta):
            everybody = _with_everybody(spent)
            bounds = [self._bound.epsilon_of(one, delta) for one in (spent, replace(spent, releases=everybody))]
            return min(*bounds, gaussian_epsilon(_multiplier(everybody), delta))
        return max(0.0, float(_distribution(spent, self.grid, self.interval).get_epsilon_for_delta(delta)))

    def delta(self, event: Event, epsilon: float) -> float:
        spent = self.ledger(event)
        if spent.unprotected:
            return 1.0
        if not spent.releases:
            return 0.0
        if self._too_large(spent, 1e-5):
            everybody = _with_everybody(spent)
            bounds = [self._bound.delta(compose(one), epsilon) for one in (spent.releases, everybody)]
            return min(*bounds, gaussian_delta(_multiplier(everybody), epsilon))
        return float(_distribution(spent, self.grid, self.interval).get_delta_for_epsilon(epsilon))


@lru_cache(maxsize=32)
def _rough_epsilon(bound: Renyi, spent: Ledger, delta: float) -> float:
    # The Renyi bound for samples without replacement is far too large; losses are about those of Poisson sampling.
    return bound.epsilon_of(replace(spent, releases=tuple(map(_as_poisson, _with_everybody(spent)))), delta)


@lru_cache(maxsize=32)
def _distribution(spent: Ledger, grid: int, interval: float) -> "PrivacyLossDistribution":
    releases = _merged(spent, grid)
    smallest = min(with_everybody(release).sigma for release in releases)
    interval = max(interval, (1 / smallest + 20) / smallest / _BUCKETS)
    parts = [release_losses(release, interval) for release in releases]
    # Composing neighbours pairwise keeps the convolutions small.
    while len(parts) > 1:
        pairs = [parts[i].compose(parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def _merged(spent: Ledger, grid: int) -> list[GaussianRelease | MechanismRelease]:
    """All unsampled releases as a single one (exact), sampled ones grouped on the grid, mechanisms as they are."""
    gaussian = plain_gaussian(spent.releases)
    plain = [release for release in gaussian if not release.sampled]
    sampled = [release for release in gaussian if release.sampled]
    merged: list[GaussianRelease | MechanismRelease] = []
    if sampled:
        counts: Counter[GaussianRelease] = Counter()
        sigmas = rounded_down(np.array([release.sigma for release in sampled]), grid)
        for release, sigma in zip(sampled, sigmas.tolist(), strict=True):
            counts[replace(release, sigma=sigma, count=1)] += release.count
        merged += [replace(release, count=count) for release, count in counts.items()]
    if plain:
        precision = sum(release.count / release.sigma**2 for release in plain)
        merged.append(GaussianRelease(1 / math.sqrt(precision), adjacency=plain[0].adjacency))
    return [*merged, *spent.mechanisms]


def _with_everybody(spent: Ledger) -> tuple[GaussianRelease, ...]:
    return tuple(map(with_everybody, spent.releases))


def _multiplier(releases: Iterable[GaussianRelease]) -> float:
    """Sensitivity over standard deviation of all releases (Gaussian) together, were nothing sampled."""
    return math.sqrt(sum(release.count / release.sigma**2 for release in releases))


def _as_poisson(release: GaussianRelease) -> GaussianRelease:
    """The release with Poisson sampling in place of sampling without replacement."""
    return replace(release, sampler="poisson", adjacency="add/remove") if release.sampled else release
