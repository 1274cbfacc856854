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
_LARGEST = 100.0
# Below such a delta Fourier transforms in double precision lose what they sum up.
_SMALLEST_DELTA, _LEAST_ERROR, _ERROR_PER_STEP = 1e-9, 1e-12, 1e-15
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

    def covers(self, release: MechanismRelease) -> bool:
        return not release.sampled and inner_gaussian(release.mechanism) is not None

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        notes = []
        if len(spent.releases) > self.grid:
            notes.append(f"sigmas rounded down into {self.grid} groups (an upper bound)")
        if not _is_plain(spent) and (self._too_large(spent, delta) or delta < _resolved(spent)):
            where = f"below a delta of {_resolved(spent):g}" if delta < _resolved(spent) else f"above {_LARGEST:g}"
            chosen = "the Renyi bound, the exact value without sampling, and this with room for its error"
            notes.append(f"{where} the smallest of {chosen}")
        return tuple(notes)

    def _too_large(self, spent: Ledger, delta: float) -> bool:
        return _rough_epsilon(spent, delta, self.grid) > _LARGEST

    def epsilon_of(self, spent: Ledger, delta: float) -> float:
        if _is_plain(spent):
            return gaussian_epsilon(_multiplier(spent.releases), delta)
        if self._too_large(spent, delta) or delta < _resolved(spent):
            everybody, bound = _with_everybody(spent), Renyi(grid=self.grid)
            bounds = [bound.epsilon_of(one, delta) for one in _proven(spent, replace(spent, releases=everybody))]
            if not self._too_large(spent, delta) and delta > 2 * _error(spent):
                composed = _distribution(spent, self.grid, self.interval)
                bounds.append(max(0.0, float(composed.get_epsilon_for_delta(delta - _error(spent)))))
            return min([*bounds, gaussian_epsilon(_multiplier(everybody), delta)])
        return max(0.0, float(_distribution(spent, self.grid, self.interval).get_epsilon_for_delta(delta)))

    def delta(self, event: Event, epsilon: float) -> float:
        spent = self.ledger(event)
        if spent.unprotected:
            return 1.0
        if not spent.releases:
            return 0.0
        if _is_plain(spent):
            return gaussian_delta(_multiplier(spent.releases), epsilon)
        composed = 1.0
        if not self._too_large(spent, 1e-5):
            found = float(_distribution(spent, self.grid, self.interval).get_delta_for_epsilon(epsilon))
            if found >= _resolved(spent):
                return found
            composed = max(0.0, found) + _error(spent)
        everybody, bound = _with_everybody(spent), Renyi(grid=self.grid)
        ledgers = _proven(spent, replace(spent, releases=everybody))
        bounds = [bound.delta(compose(one.releases), epsilon) for one in ledgers]
        return min([*bounds, gaussian_delta(_multiplier(everybody), epsilon), composed])


def _is_plain(spent: Ledger) -> bool:
    """Whether nothing but Gaussian noise was released, on everybody: its cost is known exactly."""
    return not any(isinstance(one, MechanismRelease) or one.sampled for one in spent.releases)


def _resolved(spent: Ledger) -> float:
    """The smallest delta that a distribution composed by Fourier transforms resolves without a word of its error."""
    return max(_SMALLEST_DELTA, _error(spent))


def _error(spent: Ledger) -> float:
    """What a composed distribution may err by, in delta: fifty times what was measured, 2e-13 at 10,000 steps, against
    the exact value without sampling."""
    return max(_LEAST_ERROR, _ERROR_PER_STEP * sum(release.count for release in _with_everybody(spent)))


def _proven(*ledgers: Ledger) -> list[Ledger]:
    """Those whose Renyi curves are proven: of Poisson samples they are not where somebody is replaced."""
    return [
        one for one in ledgers
        if not any(
            release.sampled and release.drawn == "poisson" and release.adjacency == "replace"
            for release in _with_everybody(one)
        )
    ]  # fmt: skip


@lru_cache(maxsize=32)
def _rough_epsilon(spent: Ledger, delta: float, grid: int) -> float:
    # The Renyi bound for samples without replacement is far too large; losses are about those of Poisson sampling.
    bound = Renyi(orders="paper", grid=grid)  # few orders: it only has to be quick
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


def _multiplier(releases: Iterable[GaussianRelease | MechanismRelease]) -> float:
    """Sensitivity over standard deviation of all releases (Gaussian) together, were nothing sampled."""
    return math.sqrt(sum(release.count / release.sigma**2 for release in plain_gaussian(releases)))


def _as_poisson(release: GaussianRelease) -> GaussianRelease:
    """The release with Poisson sampling in place of sampling without replacement."""
    return replace(release, sampler="poisson", adjacency="add/remove") if release.sampled else release
