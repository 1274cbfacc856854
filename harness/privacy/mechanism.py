"""Mechanisms as accountants see them: Renyi curves. And mechanisms made of mechanisms."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from harness.base.errors import UsageError
from harness.privacy.renyi_curves import Amplification, amplified

Array = np.ndarray


class Mechanism(ABC):
    """Base of all mechanisms: frozen records, so that each one's curve is computed once."""

    title: ClassVar[str] = "a mechanism"

    @property
    def neighbours(self) -> Literal["add/remove", "replace"] | None:
        """The adjacency that the curve is for; None where the parameters decide it."""
        return None

    @property
    def noiseless(self) -> bool:
        """Return whether nothing was added."""
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the limits of the curve in words; ``nominal: ...`` where no theorem covers it."""
        return ()

    @property
    def inner_sampler(self) -> Literal["poisson", "without-replacement", "none"]:
        """Return how the units of a step inside it are drawn; ``none`` where it has no such steps."""
        return "none"

    @abstractmethod
    def divergences(self, highest: int) -> Array:
        """Upper bounds of the Renyi divergences between neighbours at the orders 1, 2, ..., ``highest``: (highest,).

        ``highest`` is 2 or more. Order 1 may have the value of order 2, as divergences grow with the order.
        """


@lru_cache(maxsize=64)
def curve_of(mechanism: Mechanism, highest: int) -> Array:
    """The mechanism's curve, remembered; not to be written to."""
    curve = mechanism.divergences(highest)
    curve.setflags(write=False)
    return curve


@dataclass(frozen=True)
class GaussianNoise(Mechanism):
    """Gaussian noise of ``sigma`` >= 0 times the L2 sensitivity, as a part of other mechanisms (Mironov 2017)."""

    sigma: float
    title = "Gaussian noise inside another mechanism"

    @property
    def noiseless(self) -> bool:
        return self.sigma == 0

    def divergences(self, highest: int) -> Array:
        return np.arange(1.0, highest + 1) / (2 * self.sigma**2)


@dataclass(frozen=True)
class Wrapped(Mechanism):
    """Base of mechanisms made of another, whose limits they inherit."""

    inner: Mechanism

    @property
    def neighbours(self) -> Literal["add/remove", "replace"] | None:
        return self.inner.neighbours

    @property
    def noiseless(self) -> bool:
        return self.inner.noiseless

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inner.notes

    @property
    def inner_sampler(self) -> Literal["poisson", "without-replacement", "none"]:
        return self.inner.inner_sampler


@dataclass(frozen=True)
class Sampled(Wrapped):
    """The inner mechanism on a sample of the units.

    Attributes:
        q: sampling rate in (0, 1].
        sampler: ``poisson`` (add/remove) or ``without-replacement`` (replace).
        rule: for Poisson sampling, whose bound.
        capped: never above the inner curve; False leaves the bound as it is, as some papers do.
    """

    q: float
    sampler: Literal["poisson", "without-replacement"]
    rule: Amplification = "steinke"
    capped: bool = True
    title = "a mechanism on a sample"

    @property
    def neighbours(self) -> Literal["add/remove", "replace"]:
        return "add/remove" if self.sampler == "poisson" else "replace"

    @property
    def inner_sampler(self) -> Literal["poisson", "without-replacement"]:
        return self.sampler

    def divergences(self, highest: int) -> Array:
        curve = curve_of(self.inner, highest)
        return curve.copy() if self.q == 1 else amplified(curve, self.q, self.sampler, self.rule, self.capped)


def gaussian_step(sigma: float, q: float, sampler: Literal["poisson", "without-replacement", "none"]) -> Mechanism:
    """Gaussian noise on a sample of the units, or on all of them where ``q`` is 1."""
    return GaussianNoise(sigma) if sampler == "none" or q == 1 else Sampled(GaussianNoise(sigma), q, sampler)


@dataclass(frozen=True)
class Repeated(Wrapped):
    """The inner mechanism ``count`` >= 1 times over, adaptively: divergences add up."""

    count: int
    title = "several steps of a mechanism"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"the number of local steps must be at least 1, got {self.count}; give 1 or more")

    def divergences(self, highest: int) -> Array:
        return self.count * curve_of(self.inner, highest)


@dataclass(frozen=True)
class TakingPart(Wrapped):
    """The inner mechanism where the unit's owner takes part with probability ``rate``, and perhaps visibly so.

    exp((a - 1) D_a) is jointly convex in both distributions, so exp((a - 1) D') <= 1 + rate (exp((a - 1) D) - 1), with
    equality where everybody sees who takes part. The bounds for samples of *units* are smaller, but need that leaving
    the owner out is a neighbour too; for a record among thousands of its owner's it is not.
    """

    rate: float
    title = "a mechanism that some clients take part in"

    def divergences(self, highest: int) -> Array:
        gaps = np.arange(1, highest)
        moments = gaps * curve_of(self.inner, highest)[1:]
        # log(1 + rate (exp(x) - 1)) without overflow, and exact for small x.
        large = moments + np.log(self.rate + (1 - self.rate) * np.exp(-moments))
        small = np.log1p(self.rate * np.expm1(np.minimum(moments, 1.0)))
        curve = np.where(moments < 1, small, large) / gaps
        return np.concatenate([curve[:1], curve])


@dataclass(frozen=True)
class Claimed(Wrapped):
    """The inner mechanism with a curve that a paper claims and no theorem covers; ``why`` in a few words."""

    why: str
    title = "a mechanism as a paper accounts for it"

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.inner.notes, f"nominal: {self.why}")

    def divergences(self, highest: int) -> Array:
        return curve_of(self.inner, highest).copy()
