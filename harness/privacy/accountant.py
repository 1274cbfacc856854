"""Accountants: events in, an epsilon with all its conventions out; here those of base and advanced composition.

These compose (epsilon, delta) releases as the papers compute them. Sources: Wei et al., "Securing Distributed SGD
against Gradient Leakage Threats", section 7.7; Dwork, Rothblum, Vadhan 2010 (``drv``); Kairouz, Oh, Viswanath 2015,
Theorem 3.5 (``kov``, ``optimal``). See docs/accounting.md. Both charge each step with the classical Gaussian bound,
e0 = sqrt(2 ln(1.25/delta)) / sigma, amplified by sampling. The papers do not add the steps' deltas up; ``delta_total``
does.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, wraps
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from harness.base.errors import UsageError
from harness.base.ranges import LEAST_DELTA
from harness.base.registry import Registry
from harness.privacy.events import Event, GaussianRelease, Ledger, MechanismRelease, compose, ledger, plain_gaussian

Array = np.ndarray

NOMINAL = "nominal"

Word = TypeVar("Word", bound=str)
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

_libraries = lru_cache(maxsize=1)(ThreadpoolController)


def one_thread(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function with numpy's products on one thread: their last bits depend on how many add them up."""

    @wraps(function)
    def limited(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited


@dataclass(frozen=True)
class Epsilon:
    """An epsilon and everything one must know to read it.

    Attributes:
        accountant: registered name.
        epsilon: the value; infinite where nothing holds.
        delta: the delta asked for.
        delta_total: the delta that really holds; larger than ``delta`` where an accountant does not add deltas up.
        conversion: how the accountant's own currency became (epsilon, delta).
        sampler: ``poisson``, ``without-replacement``, ``none`` or ``mixed``.
        adjacency: ``add/remove`` or ``replace``.
        notes: what limits the number; ``nominal`` marks a number that no theorem covers.
    """

    accountant: str
    epsilon: float
    delta: float
    delta_total: float
    conversion: str
    sampler: str
    adjacency: str
    notes: tuple[str, ...] = ()

    @property
    def nominal(self) -> bool:
        """Return whether no theorem covers the number."""
        return any(note.startswith(NOMINAL) for note in self.notes)


def checked_delta(delta: float) -> float:
    """Return ``delta``, if it lies in (0, 1).

    Raises:
        UsageError: it does not.
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta must lie in (0, 1), got {delta:g}; take less than one over the number of units")
    return delta


def asked_delta(delta: float) -> float:
    """Return ``delta``, if it is one that may be asked for: at least 1e-30, and below 1.

    Raises:
        UsageError: it is not.
    """
    if not LEAST_DELTA <= delta < 1:
        raise UsageError(
            f"delta must lie in (0, 1), at least {LEAST_DELTA:g}, got {delta:g}; "
            "take less than one over the number of units, for example 1e-5"
        )
    return delta


@dataclass(frozen=True)
class Accountant(ABC):
    """Base of every accountant: a frozen record of its conventions."""

    name: ClassVar[str] = "abstract"

    @property
    @abstractmethod
    def conversion(self) -> str:
        """The convention behind the number, in a word or two."""

    def covers(self, release: MechanismRelease) -> bool:
        """Return whether it has a bound for a release by another mechanism than plain Gaussian noise."""
        return False

    @abstractmethod
    def epsilon_of(self, spent: Ledger, delta: float) -> float:
        """Epsilon of protected releases."""

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        """Return the limits of the number, in words."""
        return ()

    def delta_total(self, spent: Ledger, delta: float) -> float:
        """The delta that really holds."""
        return delta

    def ledger(self, event: Event) -> Ledger:
        """The event taken apart.

        Raises:
            UsageError: an unknown event, or one this accountant has no bound for.
        """
        spent = ledger(event)
        if unknown := next((release for release in spent.mechanisms if not self.covers(release)), None):
            raise UsageError(f"{self.name} has no bound for {unknown.mechanism.title}; choose --accountant rdp")
        return spent

    @one_thread
    def epsilon(self, event: Event, delta: float) -> Epsilon:
        """Epsilon of an event at ``delta`` in (0, 1).

        Raises:
            UsageError: an unknown event, one this accountant has no bound for, or a delta out of range.
        """
        spent = self.ledger(event)
        checked_delta(delta)
        if spent.unprotected:
            value, notes = math.inf, (spent.unprotected,)
        elif spent.releases:
            value, notes = self.epsilon_of(spent, delta), self.notes(spent, delta)
        else:
            value, notes = 0.0, ()
        return Epsilon(
            accountant=self.name, epsilon=value, delta=delta, delta_total=self.delta_total(spent, delta),
            conversion=self.conversion, sampler=spent.sampler, adjacency=spent.adjacency, notes=notes,
        )  # fmt: skip

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest delta at a fixed ``epsilon`` >= 0 (docs/accounting.md); 1 where none holds."""
        lowest, highest = 1e-300, 1 - 1e-15
        if self.epsilon(event, highest).epsilon > epsilon:
            return 1.0
        if self.epsilon(event, lowest).epsilon <= epsilon:
            return 0.0
        low, high = math.log(lowest), math.log(highest)
        while high - low > 1e-12 * max(1.0, -high):
            middle = (low + high) / 2
            low, high = (low, middle) if self.epsilon(event, math.exp(middle)).epsilon <= epsilon else (middle, high)
        return math.exp(high)

    def spending(self, rounds: Sequence[Event], delta: float) -> Callable[[int], float]:
        """A function that gives epsilon after the first n of ``rounds``, 0 <= n <= len(rounds)."""
        return lambda count: self.epsilon(compose(rounds[:count]), delta).epsilon


@dataclass(frozen=True)
class AdditiveAccountant(Accountant):
    """An accountant whose currency adds up over releases: each costs a vector, and the sum is converted once."""

    @abstractmethod
    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        """Return the cost of a single release of each kind: (number of releases, currency)."""

    @abstractmethod
    def converted(self, total: Array, delta: float) -> float:
        """Epsilon of a summed cost (currency,)."""

    def epsilon_of(self, spent: Ledger, delta: float) -> float:
        counts = np.array([release.count for release in spent.releases], dtype=float)
        return self.converted(counts @ self.costs(spent.releases, delta), delta)

    def spending(self, rounds: Sequence[Event], delta: float) -> Callable[[int], float]:
        ledgers = [self.ledger(event) for event in rounds]
        exposed = next((index for index, one in enumerate(ledgers) if one.unprotected), len(ledgers))
        ledgers = ledgers[:exposed]
        releases = [release for one in ledgers for release in one.releases]
        counts = np.array([[release.count] for release in releases], dtype=float).reshape(-1, 1)
        costs = np.cumsum(counts * self.costs(releases, checked_delta(delta)), axis=0) if releases else counts
        ends = np.cumsum([len(one.releases) for one in ledgers])

        def epsilon_after(count: int) -> float:
            if count > exposed:
                return math.inf
            return self.converted(costs[ends[count - 1] - 1], delta) if count and ends[count - 1] else 0.0

        return epsilon_after


ACCOUNTANTS: Registry[type[Accountant]] = Registry("accountant", "harness.accountants")


def make_accountant(name: str, **options: Any) -> Accountant:
    """The accountant of that name with the options it has among ``options``; None means its default.

    Raises:
        UsageError: unknown name, or an option's value is unknown.
    """
    kind = ACCOUNTANTS[name]
    known = {entry.name for entry in fields(kind) if entry.init}
    return kind(**{key: value for key, value in options.items() if key in known and value is not None})


def choice(value: str, allowed: Sequence[Word], what: str) -> Word:
    """Return ``value``, if it is allowed.

    Raises:
        UsageError: it is not.
    """
    for word in allowed:
        if word == value:
            return word
    raise UsageError(f"unknown {what} {value!r}; choose {', '.join(allowed)}")


# Thousands of distinct sigmas as a few: rounding down costs a little privacy loss and is never wrong.


def rounded_down(sigmas: np.ndarray, groups: int | None) -> np.ndarray:
    """Each sigma (S,) replaced by the smallest of its group, groups of equal width in log sigma; a rigorous bound.

    Unchanged with at most ``groups`` distinct values, or where ``groups`` is None.
    """
    distinct = np.unique(sigmas)
    if groups is None or len(distinct) <= groups:
        return sigmas
    low, high = math.log(distinct[0]), math.log(distinct[-1])
    group = np.minimum(((np.log(distinct) - low) / (high - low) * groups).astype(int), groups - 1)
    first_of_group = distinct[np.searchsorted(group, group, side="left")]
    return first_of_group[np.searchsorted(distinct, sigmas)]


StepEpsilon = Literal["rounded", "exact"]
Formula = Literal["drv", "kov", "optimal"]


def step_epsilons(
    releases: Sequence[GaussianRelease | MechanismRelease], delta: float, e0: StepEpsilon = "exact"
) -> Array:
    """Epsilon of one step of each release, after amplification: (number of releases,).

    ``rounded`` rounds the step's epsilon to three decimals, as the paper does (0.807 for sigma 6, delta 1e-5).
    """
    gaussian = plain_gaussian(releases)
    sigmas = np.array([release.sigma for release in gaussian])
    rates = np.array([release.q for release in gaussian])
    plain = math.sqrt(2 * math.log(1.25 / delta)) / sigmas
    if e0 == "rounded":
        plain = np.round(plain, 3)
    # log(1 + q (exp(e) - 1)), written so that a large e does not overflow.
    return plain + np.log(rates + (1 - rates) * np.exp(-plain))


@dataclass(frozen=True)
class _StepByStep(AdditiveAccountant):
    """Common part of both compositions: the steps' epsilons, and an honest account of their deltas."""

    e0: StepEpsilon = "exact"

    def __post_init__(self) -> None:
        choice(self.e0, ("rounded", "exact"), "step epsilon (e0)")

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        smallest = min(release.sigma for release in plain_gaussian(spent.releases))
        step = math.sqrt(2 * math.log(1.25 / delta)) / smallest
        unproven = (f"nominal: the classical Gaussian bound needs a step epsilon below 1, here {step:.3g}",)
        rounded = ("nominal: step epsilons rounded to three decimals, as printed",) if self.e0 == "rounded" else ()
        return (*(unproven if step >= 1 else ()), *rounded, "deltas of the steps add up to delta_total")


@ACCOUNTANTS.register("base")
@dataclass(frozen=True)
class BaseComposition(_StepByStep):
    """Epsilons simply add up."""

    name = "base"

    @property
    def conversion(self) -> str:
        return "sum" if self.e0 == "exact" else "sum, e0 as printed"

    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        return step_epsilons(releases, delta, self.e0)[:, None]

    def converted(self, total: Array, delta: float) -> float:
        return float(total[0])

    def delta_total(self, spent: Ledger, delta: float) -> float:
        return min(1.0, delta * sum(release.q * release.count for release in spent.releases))


@ACCOUNTANTS.register("advanced")
@dataclass(frozen=True)
class AdvancedComposition(_StepByStep):
    """Epsilons add up like a random walk, at the price of another delta, here equal to each step's own."""

    name = "advanced"
    formula: Formula = "drv"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.formula, ("drv", "kov", "optimal"), "formula of advanced composition")

    @property
    def conversion(self) -> str:
        return self.formula if self.e0 == "exact" else f"{self.formula}, e0 as printed"

    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        """Columns: the squared epsilon, and the drift (the expected loss, or its bound)."""
        steps = step_epsilons(releases, delta, self.e0)
        with np.errstate(over="ignore"):
            drift = steps * (np.expm1(steps) if self.formula == "drv" else np.tanh(steps / 2))
        return np.stack([steps**2, drift], axis=1)

    def converted(self, total: Array, delta: float) -> float:
        squares, drift = (float(value) for value in total)
        # Only the last bound's slack grows with the epsilons themselves.
        slack = math.log(math.e + math.sqrt(squares) / delta) if self.formula == "optimal" else math.log(1 / delta)
        return math.sqrt(2 * squares * slack) + drift

    def delta_total(self, spent: Ledger, delta: float) -> float:
        return min(1.0, delta * (1 + sum(release.q * release.count for release in spent.releases)))
