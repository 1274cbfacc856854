"""The most that any attacker wins by what a mechanism lets out, beyond what it would win without (docs/accounting.md).

A win is one event, such as picking a truth out of its lineup. ``kappa`` is its probability for the best guess of who
knows all but the output: the mechanism, the other records, the law that the target is drawn from. With the output it
is at most the largest power of a test at level kappa between the output and a reference that does not depend on the
target. Any reference will do, since it is nothing but a device of the proof: the one in the centre of all that the
target could make of the output is the best, and replacing a record is not counted twice.

Sources: Balle, Cherubin, Hayes 2022, "Reconstructing Training Data with Informed Adversaries"; Hayes, Mahloujifar,
Balle 2023, "Bounding Training Data Reconstruction in DP-SGD"; Kaissis et al. 2023, "Bounding data reconstruction
attacks with the hypothesis testing interpretation of differential privacy".
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
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

    def floor(self, kappa: float) -> float:
        """The smallest probability of an event of blind probability ``kappa``; both in [0, 1]."""
        # Rounded down by more than the difference can be off.
        return max(0.0, 1 - self.ceiling(1 - kappa) - 1e-15) if kappa < 1 else 1.0

    @abstractmethod
    def _power(self, kappa: float) -> float:
        """Return the largest probability of an event of blind probability ``kappa`` in (0, 1), not yet held in [kappa,
        1]."""

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

    def floor(self, kappa: float) -> float:
        return kappa if kappa in (0, 1) else float(ndtr(ndtri(kappa) - self.mu))

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
