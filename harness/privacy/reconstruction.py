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
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri

from harness.privacy.accountant import make_accountant
from harness.privacy.events import Event, GaussianRelease, compose, ledger
from harness.privacy.mechanism import Mechanism, curve_of

_ORDERS = 256
_LEAST = 1e-12  # a probability that nobody minds


class Limit(ABC):
    """How far an output can move with the target, as a curve from blind probabilities to those of any attacker."""

    family: ClassVar[str]

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
    family = "gaussian"

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
    family = "renyi"

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
    family = "pure epsilon"

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
    family = "loss distribution"

    def _power(self, kappa: float) -> float:
        accountant = make_accountant("pld")

        def line(epsilon: float) -> float:
            # Below 0 the curve is that of the exchanged pair: delta(-eps) <= 1 - e^-eps (1 - delta(eps)).
            if epsilon >= 0:
                return kappa * math.exp(epsilon) + accountant.delta(self.event, epsilon)
            return kappa * math.exp(epsilon) + 1 - math.exp(epsilon) * (1 - accountant.delta(self.event, -epsilon))

        # Convex in e^eps: one valley on either side of 0, beyond whose ends a line says less than that of 0.
        level = line(0.0)
        ends = -math.log(kappa), math.log((1 - kappa) / max(1 - level, _LEAST))
        sides = (minimize_scalar(line, bounds=side, method="bounded") for side in ((0.0, ends[0]), (-ends[1], 0.0)))
        return min(level, *(float(side.fun) for side in sides))

    def repeated(self, times: int) -> "RunLimit":
        return RunLimit(compose([self.event] * times))

    def beside(self, step: GaussianLimit) -> "RunLimit":
        """That of the training and of one output more, which is known to be about the target: no sample hides it."""
        # The reference of the output is its centre, whatever neighbours are in the training.
        return RunLimit(compose([self.event, GaussianRelease(1 / step.mu, adjacency=_adjacency(self.event))]))


def _adjacency(event: Event) -> str:
    return ledger(event).adjacency


@dataclass(frozen=True)
class NoLimit:
    """No theorem limits what can be won; ``reason`` says why, in half a sentence."""

    reason: str
