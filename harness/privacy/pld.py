"""Privacy loss distributions, by dp-accounting: numerically tight, an upper bound (connect-the-dots discretisation).

Sources: Koskela, Jälkö, Honkela 2020; Doroshenko et al. 2022. Spec: accounting, section 6.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import UsageError
from harness.privacy.accountant import ACCOUNTANTS, Accountant
from harness.privacy.events import Event, GaussianRelease, Ledger
from harness.privacy.rdp import Renyi
from harness.privacy.rounding import rounded_down

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# Distributions of larger losses take gigabytes and tell nobody anything; Renyi curves bound those.
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

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        notes = []
        if len(spent.releases) > self.grid:
            notes.append(f"sigmas rounded down into {self.grid} groups (an upper bound)")
        if self._too_large(spent, delta):
            notes.append(f"above {_LARGEST_EPSILON:g} the Renyi bound is given instead")
        return tuple(notes)

    def _too_large(self, spent: Ledger, delta: float) -> bool:
        _refuse_without_replacement(spent)
        return self._bound.epsilon_of(spent, delta) > _LARGEST_EPSILON

    def epsilon_of(self, spent: Ledger, delta: float) -> float:
        if self._too_large(spent, delta):
            return self._bound.epsilon_of(spent, delta)
        return max(0.0, float(_distribution(spent, self.grid, self.interval).get_epsilon_for_delta(delta)))

    def delta(self, event: Event, epsilon: float) -> float:
        spent = self.ledger(event)
        if spent.unprotected:
            return 1.0
        if not spent.releases:
            return 0.0
        if self._too_large(spent, 1e-5):
            return self._bound.delta(event, epsilon)
        return float(_distribution(spent, self.grid, self.interval).get_delta_for_epsilon(epsilon))


def _refuse_without_replacement(spent: Ledger) -> None:
    if any(release.sampled and release.sampler == "without-replacement" for release in spent.releases):
        raise UsageError("pld has no bound for sampling without replacement; choose --accountant rdp")


@lru_cache(maxsize=32)
def _distribution(spent: Ledger, grid: int, interval: float) -> "PrivacyLossDistribution":
    releases = _merged(spent, grid)
    smallest = min(release.sigma for release in releases)
    interval = max(interval, (1 / smallest + 20) / smallest / _BUCKETS)
    parts = [_loss(release, interval) for release in releases]
    # Composing neighbours pairwise keeps the convolutions small.
    while len(parts) > 1:
        pairs = [parts[i].compose(parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def _merged(spent: Ledger, grid: int) -> list[GaussianRelease]:
    """All unsampled releases as a single one (exact), the others grouped on the grid."""
    plain = [release for release in spent.releases if not release.sampled]
    sampled = [release for release in spent.releases if release.sampled]
    counts: dict[tuple[float, float], int] = defaultdict(int)
    if sampled:
        sigmas = rounded_down(np.array([release.sigma for release in sampled]), grid)
        for release, sigma in zip(sampled, sigmas.tolist(), strict=True):
            counts[(sigma, release.q)] += release.count
    merged = [
        GaussianRelease(sigma, q, "poisson", spent.releases[0].adjacency, count) for (sigma, q), count in counts.items()
    ]
    if plain:
        precision = sum(release.count / release.sigma**2 for release in plain)
        merged.append(GaussianRelease(1 / math.sqrt(precision), adjacency=plain[0].adjacency))
    return merged


def _loss(release: GaussianRelease, interval: float) -> "PrivacyLossDistribution":
    """The loss distribution of a release and its repetitions."""
    from dp_accounting.pld import privacy_loss_distribution  # slow to import, and most commands need no accountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    single, relation = release.sigma, NeighboringRelation.ADD_OR_REMOVE_ONE
    if release.sampled and release.adjacency == "replace":
        # dp-accounting states sigma over the sensitivity to adding one, half of that to replacing one.
        single, relation = 2 * release.sigma, NeighboringRelation.REPLACE_ONE
    made = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=single, value_discretization_interval=interval, sampling_prob=release.q,
        neighboring_relation=relation,
    )  # fmt: skip
    return made.self_compose(release.count)
