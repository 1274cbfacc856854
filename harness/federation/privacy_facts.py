"""Facts that a privacy statement depends on beside the defense's own settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from harness.base.vectors import Grouping
from harness.federation.context import Cohort, RoundContext
from harness.observation import Clipping, Noise
from harness.privacy import FederationFacts, GaussianLimit, GaussianRelease, Limit, NoLimit, compose
from harness.privacy.events import Composition, Sampler


@dataclass(frozen=True)
class PrivacyFacts:
    """The run that a statement is about.

    Attributes:
        cohort: clients, rounds and steps to account for.
        tensors: M, parameter tensors of the model.
        client_sampler: how a round's clients are drawn; ``none`` where it is known or fixed who takes part.
        example_sampler: how a local step's examples are drawn; ``none`` for a fixed partition into batches.
        rate: share of a client's examples in a local step, B/n_i.
        delta: of every statement.
        parameters: P of the model; None where it does not matter.
        own_state: whether clients keep something of their own between rounds: control variates (SCAFFOLD), or what
            an earlier defense of a stack left out.
        planned_rounds: T that noise schedules run over; None where it is the number of rounds accounted for.
        holders: the most clients that hold one example.
        scalars: arrays of what is sent that have no dimension; None where that is not known.
        linear: whether a client's optimizer makes weighted sums of its noisy gradients of a round.
        sent_as: the number format that weights are sent in, where it is coarser than they are; None where not.
        counted: whether anybody says how many clients take part in a round.
    """

    cohort: Cohort
    tensors: int
    client_sampler: Sampler = "poisson"
    example_sampler: Sampler = "poisson"
    rate: float = 0.01
    delta: float = 1e-5
    parameters: int | None = None
    own_state: bool = False
    planned_rounds: int | None = None
    holders: int = 1
    scalars: int | None = None
    linear: bool = True
    sent_as: str | None = None
    counted: bool = True

    @property
    def planned(self) -> Cohort:
        """The cohort over the rounds that were planned, which noise schedules run over."""
        return replace(self.cohort, rounds=self.planned_rounds or self.cohort.rounds)

    @property
    def client_rate(self) -> float:
        """K/N, the share of clients in a round."""
        return self.cohort.clients_per_round / self.cohort.clients

    def whole_bound(self, clip: float, clipping: Grouping) -> float:
        """Largest norm of a whole vector clipped to ``clip`` as a whole, or tensor by tensor."""
        return clip * (math.sqrt(self.tensors) if clipping == "layer" else 1.0)

    def steps_of_a_record(self, steps: int) -> int:
        """Return the local steps of a round that a record may be in: a share, where batches are fixed."""
        return max(1, math.ceil(steps * self.rate - 1e-9)) if self.example_sampler == "none" else steps

    def clients(self, sigma: float | Sequence[float], clipping: Grouping) -> FederationFacts:
        """The federation for client-level protection of updates."""
        return replace(self._federation(sigma, clipping, self.client_sampler), uneven=self.uneven)

    def examples(self, sigma: float | Sequence[float], clipping: Grouping) -> FederationFacts:
        """The federation for example-level protection of local steps."""
        uneven = self.uneven if self.linear else "a local optimizer that makes no weighted sum of a round's gradients"
        return replace(self._federation(sigma, clipping, self.example_sampler), uneven=uneven)

    @property
    def uneven(self) -> str | None:
        """Return why noise of clients' messages does not add up to a known one, in words; None where it does."""
        if not self.counted:
            return "a number of clients that nobody says"
        return None if self.sent_as is None else f"weights sent in {self.sent_as}"

    def _federation(self, sigma: float | Sequence[float], clipping: Grouping, sampler: Sampler) -> FederationFacts:
        cohort = self.cohort
        return FederationFacts(
            sigma, cohort.rounds, self.tensors if clipping == "layer" else 1, cohort.clients, cohort.clients_per_round,
            cohort.steps_per_round, self.rate, self.client_sampler, self.example_sampler,
            "replace" if sampler == "without-replacement" else "add/remove", own_state=self.own_state,
            holders=self.holders,
        )  # fmt: skip

    def claimed_for_clients(self, sigma: float) -> Composition:
        """Return the papers' event at client level: sigma as printed, one Poisson-sampled release per round."""
        return compose([GaussianRelease(sigma, self.client_rate, "poisson", count=self.cohort.rounds)])

    def claimed_for_examples(self, sigmas: Sequence[float]) -> Composition:
        """Return the papers' event at example level: one Poisson-sampled release per local step, sigma as printed.

        ``sigmas`` has one entry for all steps, or one per local step of all rounds.
        """
        count = self.cohort.rounds * self.cohort.steps_per_round if len(sigmas) == 1 else 1
        return compose([GaussianRelease(sigma, self.rate, "poisson", count=count) for sigma in sigmas])


# What clipping and then noise, both at one stage, leave of one example or client for anybody to reconstruct.

NO_NOISE = "no noise is added by then"
BARE = "some coordinates carry no noise"
NO_CLIPPING = "noise without clipping: one record may move the result by any amount"
LEFT_OUT = "which coordinates are left out depends on private data"
NEVER_SENT = "some coordinates are never sent, which no theorem here covers"
FOLLOWS_DATA = "the scale of the noise follows private data"
_TYPICAL = 0.1  # the blind probability at which limits of different families are compared


def limit_of(noise: Noise | None, clipping: Clipping | None, unit: float, context: RoundContext) -> Limit | NoLimit:
    """The limit on what one clipped vector can be told by, from what a defense does at a stage.

    Args:
        noise: on a coordinate of what the stage gives out, ``context.noise_scale`` left aside.
        clipping: of what the noise was added to, around zero.
        unit: how far one clipped vector moves what the stage gives out, for each unit of the clipping's bound.
        context: of the round, with noise.
    """
    if noise is None:
        return NoLimit(NO_NOISE)
    if clipping is None or clipping.bound is None or math.isinf(clipping.bound):
        # Where neither bound nor noise is known it is the noise's scale that everything else hangs on.
        return NoLimit(FOLLOWS_DATA if noise.estimated else NO_CLIPPING)
    if noise.deviation is None:
        return NoLimit(FOLLOWS_DATA)
    if noise.law != "gaussian":
        return NoLimit(f"no theorem here covers noise of the law {noise.law}")
    groups = len(context.layout.groups(clipping.grouping))
    least = float(noise.deviation.min()) if isinstance(noise.deviation, Tensor) else noise.deviation
    if least == 0:
        return NoLimit(BARE)
    distance = clipping.bound * math.sqrt(groups) * unit
    return GaussianLimit(distance / (least * context.noise_scale))


def height(limit: Limit | NoLimit) -> float:
    """Return how much a limit allows, to compare limits of different families."""
    return limit.ceiling(_TYPICAL) if isinstance(limit, Limit) else 2.0
