"""The most that any attacker wins by what a mechanism lets out, beyond what it would win without (docs/accounting.md).

A win is one event, such as picking a truth out of its lineup. ``kappa`` is its probability for the best guess of who
knows all but the output: the mechanism, the other records, the law that the target is drawn from. With the output it
is at most the largest power of a test at level kappa between the output and a reference that does not depend on the
target. Any reference will do, since it is nothing but a device of the proof: the one in the centre of all that the
target could make of the output is the best, and replacing a record is not counted twice.

Sources: Balle, Cherubin, Hayes 2022, "Reconstructing Training Data with Informed Adversaries"; Hayes, Mahloujifar,
Balle 2023, "Bounding Training Data Reconstruction in DP-SGD"; Kaissis et al. 2023, "Bounding data reconstruction
attacks with the hypothesis testing interpretation of differential privacy".

Successes that are more than a limit allows are a contradiction, which only a wrong mechanism can explain. Victims are
independent, but truths of a class stand among the same look-alikes: where those happen to lie far from what a guess is
near to, the guess is first for all of them. Given D look-alikes the share of a class that is nearer to one guess than
any of them is Beta(1, D), with mean 1/(D + 1); averages over several guesses vary less. So the truths of a class are
first with one common, random blind probability. Images of one victim may share one fate: each place in a batch is
tested on its own (Bonferroni).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr, ndtri

from harness.privacy.accountant import make_accountant
from harness.privacy.events import Event, GaussianRelease, compose, ledger
from harness.privacy.mechanism import Array, Mechanism, curve_of

_ORDERS = 256
_EPSILONS = np.concatenate([np.arange(0.0, 3.0, 0.05), np.arange(3.0, 14.1, 0.25)])


class Limit(ABC):
    """Limit of an output's dependence on the target: a curve from blind probabilities to those of any attacker."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The mechanism in a few words, with its figures."""

    def ceiling(self, kappa: float) -> float:
        """The largest probability of an event of blind probability ``kappa``; both in [0, 1].

        Raises:
            ValueError: ``kappa`` is no probability.
        """
        if not 0 <= kappa <= 1:
            raise ValueError(f"a blind probability lies in [0, 1], got {kappa}")
        # No output of the mechanisms here is impossible under their references.
        return kappa if kappa in (0, 1) else min(1.0, max(kappa, self._power(kappa)))

    @abstractmethod
    def _power(self, kappa: float) -> float:
        """The same, for ``kappa`` in (0, 1), not yet held in [kappa, 1]."""

    @abstractmethod
    def repeated(self, times: int) -> "Limit":
        """That of ``times`` outputs about the same target, with noise of their own."""


@dataclass(frozen=True)
class GaussianLimit(Limit):
    """Gaussian noise; exact for two candidates on either side of the centre.

    Attributes:
        mu: largest distance from the centre in standard deviations of the noise, > 0.
    """

    mu: float

    @property
    def title(self) -> str:
        return f"Gaussian noise, mu = {self.mu:.4g}"

    def _power(self, kappa: float) -> float:
        return float(ndtr(ndtri(kappa) + self.mu))

    def repeated(self, times: int) -> "GaussianLimit":
        return GaussianLimit(self.mu * math.sqrt(times))


@dataclass(frozen=True)
class RenyiLimit(Limit):
    """A mechanism with a Renyi curve eps(alpha): at most (kappa e^eps(alpha))^((alpha - 1) / alpha) for every alpha.

    Attributes:
        mechanism: whose curve compares the output with the same without the target.
        times: how many such outputs.
    """

    mechanism: Mechanism
    times: int = 1

    @property
    def title(self) -> str:
        often = f", {self.times} times" if self.times > 1 else ""
        return f"the Renyi curve of {self.mechanism.title}{often}"

    def _power(self, kappa: float) -> float:
        orders = np.arange(2, _ORDERS + 1)
        logs = (math.log(kappa) + self.times * curve_of(self.mechanism, _ORDERS)[1:]) * (orders - 1) / orders
        return math.exp(min(0.0, float(logs.min())))

    def repeated(self, times: int) -> "RenyiLimit":
        return RenyiLimit(self.mechanism, self.times * times)


@dataclass(frozen=True)
class PureLimit(Limit):
    """Outputs whose probabilities change at most by e^``epsilon``, > 0, in either direction."""

    epsilon: float

    @property
    def title(self) -> str:
        return f"pure epsilon = {self.epsilon:.4g}"

    def _power(self, kappa: float) -> float:
        return min(kappa * math.exp(min(self.epsilon, 700.0)), 1 - math.exp(-self.epsilon) * (1 - kappa))

    def repeated(self, times: int) -> "PureLimit":
        return PureLimit(self.epsilon * times)


@dataclass(frozen=True)
class RunLimit(Limit):
    """A whole training, by its privacy loss distribution: min over eps of e^eps kappa + delta(eps).

    Attributes:
        event: all that the training let out about one record, with at least one release.
    """

    event: Event

    @property
    def title(self) -> str:
        return "the privacy loss of the whole training"

    @cached_property
    def _lines(self) -> Array:
        """Slopes and heights at kappa = 0 of lines (2, E) that lie above the exact curve, each at one eps."""
        accountant = make_accountant("pld")
        deltas = np.array([accountant.delta(self.event, float(epsilon)) for epsilon in _EPSILONS])
        slopes = np.exp(_EPSILONS)
        # Below 0 the curve is that of the exchanged pair: delta(-eps) <= 1 - e^-eps (1 - delta(eps)).
        return np.stack([np.append(slopes, 1 / slopes), np.append(deltas, 1 - (1 - deltas) / slopes)])

    def _power(self, kappa: float) -> float:
        slopes, heights = self._lines
        return float((slopes * kappa + heights).min())

    def repeated(self, times: int) -> "RunLimit":
        return RunLimit(compose([self.event] * times))

    def beside(self, step: GaussianLimit) -> "RunLimit":
        """That of the training and of one output more, which is known to be about the target: no sample hides it."""
        # The reference of the output is its centre, whatever neighbours are in the training.
        adjacency = "replace" if ledger(self.event).adjacency == "replace" else "add/remove"
        return RunLimit(compose([self.event, GaussianRelease(1 / step.mu, adjacency=adjacency)]))


@dataclass(frozen=True)
class NoLimit:
    """No theorem limits what can be won; ``reason`` says why, in half a sentence."""

    reason: str


# Survival probabilities at which the law of the blind probability is cut into pieces, each taken at its upper end.
_CUTS = np.concatenate([np.linspace(1, 0.01, 400), np.logspace(-2, -12, 200)[1:]])


def lineup_p_value(
    first: NDArray[np.bool_], sizes: NDArray[np.int64], labels: NDArray[np.int64], limit: Limit
) -> float | None:
    """Chance of so many first places or more, were each as probable as the limit allows; None without lineups.

    Args:
        first: (V, n), who is first in its lineup.
        sizes: (V, n), how many stand in it; 1 is no lineup and is left out.
        labels: (V, n), the classes, which look-alikes are of.
        limit: the theorem's.
    """
    known: dict[int, NDArray[np.float64]] = {}

    def chances(size: int) -> NDArray[np.float64]:
        if size not in known:
            shares = 1 - np.append(_CUTS[1:], 0.0) ** (1 / (size - 1))
            known[size] = np.array([limit.ceiling(float(share)) for share in shares])
        return known[size]

    def one_place(place: int) -> float | None:
        there = sizes[:, place] > 1
        if not there.any():
            return None
        hits, total = int(first[there, place].sum()), np.ones(1)
        groups = zip(labels[there, place].tolist(), sizes[there, place].tolist(), strict=True)
        distinct, counts = np.unique(np.array(list(groups)), axis=0, return_counts=True)
        for (_, size), count in zip(distinct.tolist(), counts.tolist(), strict=True):
            total = np.convolve(total, _mixed_binomial(count, chances(size)))
        return float(min(1.0, total[hits:].sum()))

    return _over_places(first.shape[1], one_place)


def strict_p_value(strict: NDArray[np.bool_], blind: NDArray[np.float64], limit: Limit) -> float:
    """Return the p-value for strict images (V, n) whose blind probabilities are ``blind`` (V, n).

    Trials of different probabilities reach so high a number no more often than as many of their mean (Hoeffding 1956),
    and the limit of a mean is above the mean of limits.
    """

    def one_place(place: int) -> float:
        ceiling = limit.ceiling(float(blind[:, place].mean()))
        return float(stats.binom.sf(int(strict[:, place].sum()) - 1, len(strict), ceiling))

    found = _over_places(strict.shape[1], one_place)
    assert found is not None
    return found


def _mixed_binomial(count: int, chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities (count + 1,) of hits where all trials share a chance (L,) that is itself random."""
    weights = -np.diff(np.append(_CUTS, 0.0))
    return weights @ stats.binom.pmf(np.arange(count + 1), count, chances[:, None])


def _over_places(places: int, p_value: Callable[[int], float | None]) -> float | None:
    found = [value for value in map(p_value, range(places)) if value is not None]
    return min(1.0, len(found) * min(found)) if found else None


_HALF = 0.5


def combined(rounds: Iterable[Limit | NoLimit]) -> Limit | NoLimit:
    """That of several rounds about the same target, each with noise of its own: of Gaussian ones squares add up."""
    found = list(rounds)
    limits = [one for one in found if isinstance(one, Limit)]
    if len(limits) < len(found):
        return next(one for one in found if isinstance(one, NoLimit))
    if len(limits) == 1:
        return limits[0]
    gaussian = [one for one in limits if isinstance(one, GaussianLimit)]
    if len(gaussian) == len(limits):
        return GaussianLimit(math.hypot(*(one.mu for one in gaussian)))
    if len({type(one) for one in limits}) > 1:
        return NoLimit("its rounds have theorems of different kinds, and none is of all of them")
    # Of one kind the weakest lets out no less than any other.
    return max(limits, key=lambda one: one.ceiling(_HALF)).repeated(len(limits))
