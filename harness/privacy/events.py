"""Events that happened to the data, as far as privacy is concerned: accountants turn them into epsilons.

``sigma`` is always the *effective* multiplier: the noise's standard deviation over the L2 sensitivity of the released
sum under the event's own adjacency (docs/accounting.md). What is not Gaussian is a ``MechanismRelease``.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from harness.base.errors import UsageError
from harness.base.ranges import LEAST_SHARE
from harness.privacy.mechanism import Mechanism

Sampler = Literal["poisson", "without-replacement", "none"]
Adjacency = Literal["add/remove", "replace"]

SAMPLERS: tuple[Sampler, ...] = ("poisson", "without-replacement", "none")
ADJACENCIES: tuple[Adjacency, ...] = ("add/remove", "replace")


# Noise, and the inverse square of a sigma times the largest order and the number of releases, have to stay numbers.
_LEAST_SIGMA = 1e-30


@dataclass(frozen=True)
class NoEvent:
    """Nothing was released: costs nothing."""


@dataclass(frozen=True)
class NonPrivate:
    """Something was released without calibrated noise: no epsilon holds. ``reason`` says what."""

    reason: str = "released without calibrated noise"


class Release:
    """Common part of all releases: how the units of each are sampled, what neighbours are, and how many there are."""

    q: float
    sampler: Sampler
    adjacency: Adjacency
    count: int

    def __post_init__(self) -> None:
        if not LEAST_SHARE <= self.q <= 1:
            raise UsageError(
                f"the sampling rate must lie in (0, 1], at least {LEAST_SHARE:g}, got {self.q:g}; "
                "give batch size / data size"
            )
        if self.sampler not in SAMPLERS:
            raise UsageError(f"unknown sampler {self.sampler!r}; choose {', '.join(SAMPLERS)}")
        if self.adjacency not in ADJACENCIES:
            raise UsageError(f"unknown adjacency {self.adjacency!r}; choose {', '.join(ADJACENCIES)}")
        if self.count < 0:
            raise UsageError(f"the number of steps must be at least 0, got {self.count}")
        if self.sampler == "none" and self.q != 1:
            raise UsageError(
                f"without a sampler the rate is 1, got {self.q:g}; choose --sampler poisson or leave it out"
            )
        if self.sampler == "without-replacement" and self.adjacency != "replace":
            raise UsageError("sampling without replacement is analysed under replace-one adjacency; choose replace")

    @property
    def sampled(self) -> bool:
        """Return whether sampling hides who took part; a rate of 1 hides nobody."""
        return self.sampler != "none" and self.q < 1

    @property
    def drawn(self) -> Sampler:
        """The sampler, of the units or, where those are not sampled, of steps inside."""
        return self.sampler


@dataclass(frozen=True)
class GaussianRelease(Release):
    """``count`` releases of a sum with Gaussian noise, each over a fresh sample of the units.

    Attributes:
        sigma: effective noise multiplier, >= 0; 0 is a release without noise.
        q: sampling rate in (0, 1]; 1 for ``sampler`` none.
        sampler: how the units of a release are chosen.
        adjacency: what neighbouring data sets are; sampling without replacement is analysed under ``replace``.
        count: how many such releases, >= 0.

    Raises:
        UsageError: a value is out of its range, or the combination has no analysis.
    """

    sigma: float
    q: float = 1.0
    sampler: Sampler = "none"
    adjacency: Adjacency = "add/remove"
    count: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(f"sigma must be a finite number of at least 0, got {self.sigma:g}; lower or raise it")
        if self.sigma and not _LEAST_SIGMA <= self.sigma <= 1 / _LEAST_SIGMA:
            raise UsageError(
                f"sigma {self.sigma:g} (after scaling by the convention, if any) is beyond what can be computed with; "
                f"take 0, or one that makes it {_LEAST_SIGMA:g} to {1 / _LEAST_SIGMA:g}"
            )
        super().__post_init__()

    @property
    def noiseless(self) -> bool:
        """Return whether nothing was added."""
        return self.sigma == 0


@dataclass(frozen=True)
class MechanismRelease(Release):
    """``count`` releases by any mechanism with a Renyi curve; the other fields as for ``GaussianRelease``.

    Raises:
        UsageError: as for ``GaussianRelease``, or the mechanism's curve is for other neighbours.
    """

    mechanism: Mechanism
    q: float = 1.0
    sampler: Sampler = "none"
    adjacency: Adjacency = "add/remove"
    count: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism.neighbours not in (None, self.adjacency):
            raise UsageError(
                f"{self.mechanism.title} is analysed under {self.mechanism.neighbours} adjacency; choose it"
            )

    @property
    def drawn(self) -> Sampler:
        return self.mechanism.inner_sampler if self.sampler == "none" else self.sampler

    @property
    def noiseless(self) -> bool:
        """Return whether nothing was added."""
        return self.mechanism.noiseless


@dataclass(frozen=True)
class Composition:
    """Several events on the same data, in any order; adaptively chosen ones too, if their sigmas were fixed before."""

    events: tuple["Event", ...]


Event = NoEvent | NonPrivate | GaussianRelease | MechanismRelease | Composition


def compose(events: Iterable[Event]) -> Composition:
    """The composition of any number of events."""
    return Composition(tuple(events))


@dataclass(frozen=True)
class Ledger:
    """An event taken apart: distinct releases with their counts, and whether anything was released unprotected."""

    releases: tuple[GaussianRelease | MechanismRelease, ...]
    unprotected: str | None = None

    @property
    def mechanisms(self) -> tuple[MechanismRelease, ...]:
        """The releases that are not plain Gaussian ones."""
        return tuple(release for release in self.releases if isinstance(release, MechanismRelease))

    @property
    def sampler(self) -> str:
        """The samplers' common name, ``mixed``, or ``none`` without releases."""
        return _common((release.drawn for release in self.releases), "none")

    @property
    def adjacency(self) -> str:
        """The adjacency of all releases."""
        return _common((release.adjacency for release in self.releases), "add/remove")


def plain_gaussian(releases: Iterable[GaussianRelease | MechanismRelease]) -> tuple[GaussianRelease, ...]:
    """The releases of plain Gaussian noise: all of them, where an accountant covers nothing else."""
    return tuple(release for release in releases if isinstance(release, GaussianRelease))


def ledger(event: Event) -> Ledger:
    """Takes an event apart; equal releases are merged, so order does not matter.

    Raises:
        UsageError: an unknown event, or releases stated under different adjacencies.
    """
    counts: Counter[GaussianRelease | MechanismRelease] = Counter()
    unprotected = None
    for part in _parts(event):
        if isinstance(part, NonPrivate):
            unprotected = unprotected or part.reason
        elif part.count and part.noiseless:
            unprotected = unprotected or "released without noise (sigma 0)"
        elif part.count:
            counts[replace(part, count=1)] += part.count
    if len({release.adjacency for release in counts}) > 1:
        raise UsageError("releases under different adjacencies do not compose; state all of them under one")
    merged = sorted((replace(release, count=count) for release, count in counts.items()), key=_place)
    return Ledger(tuple(merged), unprotected)


def _place(release: GaussianRelease | MechanismRelease) -> tuple[float, str]:
    """Gaussian releases by sigma, then the others: an order that does not depend on the events'."""
    return (release.sigma, "") if isinstance(release, GaussianRelease) else (math.inf, repr(release))


def _parts(event: Event) -> Iterable[NonPrivate | GaussianRelease | MechanismRelease]:
    if isinstance(event, Composition):
        for part in event.events:
            yield from _parts(part)
    elif isinstance(event, NonPrivate | GaussianRelease | MechanismRelease):
        yield event
    elif not isinstance(event, NoEvent):
        raise UsageError(f"no accountant knows the event {event!r}; use the events of harness.privacy.events")


def _common(values: Iterable[str], nothing: str) -> str:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ("mixed" if distinct else nothing)
