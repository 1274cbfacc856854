"""Privacy loss distributions, by dp-accounting: numerically tight, an upper bound (connect-the-dots discretisation).

Sources: Koskela, Jälkö, Honkela 2020; Doroshenko et al. 2022; for those of single releases, see below.
See docs/accounting.md.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfcx, ndtr

from harness.privacy.accountant import ACCOUNTANTS, Accountant, one_thread, rounded_down
from harness.privacy.events import Adjacency, Event, GaussianRelease, Ledger, MechanismRelease, compose, plain_gaussian
from harness.privacy.mechanism import GaussianNoise, Mechanism, Repeated, Sampled, TakingPart, gaussian_step
from harness.privacy.rdp import Renyi

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


# What Gaussian noise costs exactly. Source: Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential
# Privacy: Analytical Calibration and Optimal Denoising", Theorem 8. See docs/accounting.md.
#
# `multiplier` is mu = sensitivity / standard deviation; releases compose to the root of the sum of their squares.


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), for mu > 0 and ``epsilon`` >= 0."""
    near, far = epsilon / multiplier - multiplier / 2, epsilon / multiplier + multiplier / 2
    # e^eps times the second density is the first one's, so that nothing overflows.
    density = math.exp(-(near**2) / 2) / 2
    return max(0.0, float(ndtr(-near)) - density * float(erfcx(far / math.sqrt(2))))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest epsilon >= 0 at ``delta`` in (0, 1), rounded up."""
    low, high = 0.0, 1.0
    if gaussian_delta(multiplier, low) <= delta:
        return low
    while gaussian_delta(multiplier, high) > delta:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(multiplier, middle) <= delta else (middle, high)
    return high


# Loss distributions of Gaussian noise, for dp-accounting to compose: on samples, in several steps, and now and then.
#
# Sampling without replacement is ours, as dp-accounting has no loss distribution for it. Source: Zhu, Dong, Wang
# 2022, "Optimal Accounting of Differential Privacy via Characteristic Function", Theorem 11, after Balle, Barthe,
# Gaboardi 2018, "Privacy Amplification by Subsampling", Theorem 10: for replacing one unit, of which a sample at rate
# q has one version or the other, the hockey-stick divergence at e^eps is that of the mixture (1-q) N(0) + q N(1) from
# N(0) where eps >= 0, and follows from the symmetry of replacing where eps < 0.

_DEVIATIONS = 10.0  # of noise beyond which a loss counts as infinite: 1e-23 of the probability


def inner_gaussian(mechanism: Mechanism) -> GaussianNoise | None:
    """The Gaussian noise that a mechanism is made of; None where its loss distribution is not known here."""
    if isinstance(mechanism, Repeated | TakingPart):
        return inner_gaussian(mechanism.inner)
    inner = mechanism.inner if isinstance(mechanism, Sampled) else mechanism
    return inner if isinstance(inner, GaussianNoise) else None


def with_everybody(release: GaussianRelease | MechanismRelease) -> GaussianRelease:
    """The steps that a release is made of, where everybody takes part: never less than it costs."""
    if isinstance(release, GaussianRelease):
        return release
    mechanism, steps = release.mechanism, release.count
    while isinstance(mechanism, Repeated | TakingPart):
        steps *= mechanism.count if isinstance(mechanism, Repeated) else 1
        mechanism = mechanism.inner
    if (noise := inner_gaussian(mechanism)) is None:
        raise TypeError(f"no Gaussian noise in {mechanism!r}")
    if isinstance(mechanism, Sampled):
        return GaussianRelease(noise.sigma, mechanism.q, mechanism.sampler, release.adjacency, steps)
    return GaussianRelease(noise.sigma, adjacency=release.adjacency, count=steps)


def release_losses(release: GaussianRelease | MechanismRelease, interval: float) -> "PrivacyLossDistribution":
    """The loss distribution of a release and its repetitions, in buckets of width ``interval``."""
    if isinstance(release, MechanismRelease):
        single = release.mechanism
    else:
        single = gaussian_step(release.sigma, release.q if release.sampled else 1.0, release.sampler)
    return losses(single, release.adjacency, interval).self_compose(release.count)


@lru_cache(maxsize=16)  # a run asks for the same after every round; each may hold a hundred thousand buckets
def losses(mechanism: Mechanism, adjacency: Adjacency, interval: float) -> "PrivacyLossDistribution":
    """The loss distribution of a mechanism that ``inner_gaussian`` finds Gaussian noise in."""
    from dp_accounting.pld import privacy_loss_distribution  # slow to import, and most commands need no accountant

    match mechanism:
        case GaussianNoise(sigma):
            return _by_library(sigma, 1.0, "add/remove", interval)
        case Sampled(GaussianNoise(sigma), q, "without-replacement") if q < 1:
            return _without_replacement(sigma, q, interval)
        case Sampled(GaussianNoise(sigma), q):
            return _by_library(sigma, q, adjacency if q < 1 else "add/remove", interval)
        case Repeated(inner, count):
            return losses(inner, adjacency, interval).self_compose(count)
        case TakingPart(inner, rate):
            nothing = privacy_loss_distribution.identity(interval)
            return losses(inner, adjacency, interval).compute_mixture(nothing, rate)
    raise TypeError(f"no loss distribution of {mechanism!r}")


def _by_library(sigma: float, q: float, adjacency: Adjacency, interval: float) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if adjacency == "replace":
        # dp-accounting states sigma over the sensitivity to adding one, half of that to replacing one.
        sigma, relation = 2 * sigma, NeighboringRelation.REPLACE_ONE
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma, value_discretization_interval=interval, sampling_prob=q,
        neighboring_relation=relation,
    )  # fmt: skip


def _without_replacement(sigma: float, q: float, interval: float) -> "PrivacyLossDistribution":
    """Noise of ``sigma`` over the sensitivity to replacing one unit, on a sample without replacement at rate ``q``.

    The loss at noise x is log(1 - q + q exp((2x - 1) / (2 sigma^2))), positive beyond 1/2. Each interval between
    buckets gives both its probabilities to its two ends (Doroshenko et al. 2022, "Connect the Dots"), the negative
    side mirrors the positive one, and what is left has no loss.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    largest = np.logaddexp(np.log1p(-q), np.log(q) + (1 + 2 * _DEVIATIONS * sigma) / (2 * sigma**2))
    edges = interval * np.arange(max(1, int(np.ceil(largest / interval))) + 1)
    near = np.log1p(np.expm1(np.minimum(edges, 50.0)) / q)
    noise = 0.5 + sigma**2 * np.where(edges < 50, near, edges - np.log(q))
    without, replaced = ndtr(-noise / sigma), ndtr((1 - noise) / sigma)
    mixture = (1 - q) * without + q * replaced
    first, second = -np.diff(mixture), -np.diff(without)
    with np.errstate(divide="ignore"):  # log 0 is what remains of nothing
        least = np.exp(edges[:-1] + np.log(second))
    above = np.clip((first - least) / -np.expm1(-interval), 0.0, first)
    positive = np.append(first - above, 0.0) + np.append(0.0, above)
    negative = positive * np.exp(-edges)
    negative[-1] += without[-1]
    nothing = (1 - q) * (1 - 2 * ndtr(-0.5 / sigma)) + 2 * positive[0]
    probabilities = np.concatenate([negative[:0:-1], [nothing], positive[1:]])
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(interval, 1 - len(edges), probabilities, float(mixture[-1]), True)
    )


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
        if not is_plain(spent) and (self._too_large(spent, delta) or delta < _resolved(spent)):
            where = f"below a delta of {_resolved(spent):g}" if delta < _resolved(spent) else f"above {_LARGEST:g}"
            chosen = "the Renyi bound, the exact value without sampling, and this with room for its error"
            notes.append(f"{where} the smallest of {chosen}")
        return tuple(notes)

    def _too_large(self, spent: Ledger, delta: float) -> bool:
        return _rough_epsilon(spent, delta, self.grid) > _LARGEST

    def epsilon_of(self, spent: Ledger, delta: float) -> float:
        if is_plain(spent):
            return gaussian_epsilon(total_mu(spent.releases), delta)
        if self._too_large(spent, delta) or delta < _resolved(spent):
            everybody, bound = _with_everybody(spent), Renyi(grid=self.grid)
            bounds = [bound.epsilon_of(one, delta) for one in _proven(spent, replace(spent, releases=everybody))]
            if not self._too_large(spent, delta) and delta > 2 * _error(spent):
                composed = _distribution(spent, self.grid, self.interval)
                bounds.append(max(0.0, float(composed.get_epsilon_for_delta(delta - _error(spent)))))
            return min([*bounds, gaussian_epsilon(total_mu(everybody), delta)])
        return max(0.0, float(_distribution(spent, self.grid, self.interval).get_epsilon_for_delta(delta)))

    @one_thread
    def delta(self, event: Event, epsilon: float) -> float:
        spent = self.ledger(event)
        if spent.unprotected:
            return 1.0
        if not spent.releases:
            return 0.0
        if is_plain(spent):
            return gaussian_delta(total_mu(spent.releases), epsilon)
        composed = 1.0
        if not self._too_large(spent, 1e-5):
            found = float(_distribution(spent, self.grid, self.interval).get_delta_for_epsilon(epsilon))
            if found >= _resolved(spent):
                return found
            composed = max(0.0, found) + _error(spent)
        everybody, bound = _with_everybody(spent), Renyi(grid=self.grid)
        ledgers = _proven(spent, replace(spent, releases=everybody))
        bounds = [bound.delta(compose(one.releases), epsilon) for one in ledgers]
        return min([*bounds, gaussian_delta(total_mu(everybody), epsilon), composed])


def is_plain(spent: Ledger) -> bool:
    """Return whether nothing but Gaussian noise was released, on everybody: its cost is known exactly."""
    return not any(isinstance(one, MechanismRelease) or one.sampled for one in spent.releases)


def _resolved(spent: Ledger) -> float:
    """The smallest delta that a distribution composed by Fourier transforms resolves without a word of its error."""
    return max(_SMALLEST_DELTA, _error(spent))


def _error(spent: Ledger) -> float:
    """Return what a composed distribution may err by, in delta: fifty times what was measured, 2e-13 at 10,000 steps,
    against the exact value without sampling."""
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


def total_mu(releases: Iterable[GaussianRelease | MechanismRelease]) -> float:
    """Sensitivity over standard deviation of all releases (Gaussian) together, were nothing sampled."""
    return math.sqrt(sum(release.count / release.sigma**2 for release in plain_gaussian(releases)))


def _as_poisson(release: GaussianRelease) -> GaussianRelease:
    """The release with Poisson sampling in place of sampling without replacement."""
    return replace(release, sampler="poisson", adjacency="add/remove") if release.sampled else release
