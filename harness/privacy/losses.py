"""Loss distributions of Gaussian noise, for dp-accounting to compose: on samples, in several steps, and now and then.

Sampling without replacement is ours, as dp-accounting has no loss distribution for it. Source: Zhu, Dong, Wang 2022,
"Optimal Accounting of Differential Privacy via Characteristic Function", Theorem 11, after Balle, Barthe, Gaboardi
2018, "Privacy Amplification by Subsampling", Theorem 10: for replacing one unit, of which a sample at rate q has one
version or the other, the hockey-stick divergence at e^eps is that of the mixture (1-q) N(0) + q N(1) from N(0) where
eps >= 0, and follows from the symmetry of replacing where eps < 0.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from harness.privacy.events import Adjacency, GaussianRelease, MechanismRelease
from harness.privacy.mechanism import GaussianNoise, Mechanism, Repeated, Sampled, TakingPart, gaussian_step

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

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
