"""Global DP: the server clips whole updates, adds noise to their sum, and stops when the privacy budget is spent.

Source: Geyer, Klein, Nabi 2017, "Differentially Private Federated Learning: A Client Level Perspective".
See docs/defenses.md and docs/accounting.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from harness.base.presence import up
from harness.base.ranges import LEAST_CLIP, MOST, Clip, Delta, Positive, Sigma
from harness.base.vectors import noise_deviation
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import AnyClip, ClipUpdate, GaussianNoise
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.memory import Remembered
from harness.federation.operations import Bookkeeping, Operation
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.privacy import client_views, valid_epsilon

_BINS_PER_OCTAVE = 16
_OCTAVES = 40  # norms from 2^-20 to 2^20, to within 2.2%
_BINS = _BINS_PER_OCTAVE * _OCTAVES


def norm_counts(vectors: Tensor) -> Tensor:
    """A one in the bin of each vector's L2 norm: (N, P) -> (N, bins); summed over clients, a histogram."""
    octaves = vectors.norm(dim=-1).clamp_min(1e-30).log2() + _OCTAVES / 2
    bins = (octaves * _BINS_PER_OCTAVE).floor().long().clamp(0, _BINS - 1)
    return torch.nn.functional.one_hot(bins, _BINS).to(vectors)


def median_norm(counts: Tensor) -> Tensor:
    """The (lower) median of the norms behind a histogram (bins,): the middle of its bin, a scalar."""
    half = counts.sum() / 2
    found = (counts.cumsum(0) >= half).long().argmax()
    return torch.exp2((found.to(counts) + 0.5) / _BINS_PER_OCTAVE - _OCTAVES / 2)


@dataclass(frozen=True)
class ClipForServer(ClipUpdate):
    """Clips updates as they arrive to a fixed S; the server promises that alone."""

    @property
    def why(self) -> str:
        return "whole updates clipped to a fixed S"


@dataclass(frozen=True)
class CountNorms(Bookkeeping):
    """Sends the norm of each update beside it, as a count that adds up over clients."""

    points = (Point.MESSAGE,)

    @property
    def sends(self) -> tuple[str, ...]:
        return ("norms",)

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        context.sent["norms"] = norm_counts(rows)
        return rows


@dataclass(frozen=True)
class ClipToMedian(ClipUpdate):
    """Clips updates to the median norm of the round before's, which the server remembers; ``bound`` is the first."""

    fixed = False

    def now(self, server: State | None) -> float:
        return float((server or {}).get("bound", self.bound))

    @property
    def flaw(self) -> str:
        return "S is the median of private norms and is not itself protected; the epsilon of a fixed S is nominal only"

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"bound": Remembered(least=LEAST_CLIP, most=MOST)}

    def words(self) -> str:
        return f"clipped per whole to S=median norm of the last round, first {self.bound:g}"


@dataclass(frozen=True)
class LearnMedian(Bookkeeping):
    """The server's next S, from the counts of a round; ``of`` is the clip that goes by it."""

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        if "norms" in context.sent:
            context.server["bound"] = median_norm(context.sent["norms"])
        elif isinstance(self.of, AnyClip):
            # Nobody took part.
            context.server.setdefault("bound", total.new_tensor(self.of.bound))
        return total


@dataclass(frozen=True)
class StopAtBudget(Operation):
    """Ends training before a third party or another client learns more than ``epsilon`` at the run's delta.

    With ``most_delta``, epsilon is held fixed and it is its delta that must not exceed that. ``of`` is the noise.
    """

    epsilon: float
    most_delta: float | None

    points = (Point.BROADCAST,)
    silent = True
    acts = False

    def finished(self, facts: PrivacyFacts) -> str | None:
        assert isinstance(self.of, GaussianNoise)
        delta = facts.delta if self.most_delta is None else self.most_delta
        views = [view for view in client_views(facts.clients(self.of.level, "whole")) if view.name != "server"]
        # delta(epsilon) > max_delta exactly when epsilon(max_delta) > epsilon: one search serves both rules.
        spent = [valid_epsilon(view.event, delta)[0] for view in views]
        rounds, known = facts.cohort.rounds, max(math.inf if value is None else value for value in spent)
        if known <= self.epsilon:
            return None
        if self.most_delta is None:
            return f"round {rounds} would spend epsilon {up(known, 4)} at delta {delta:g}, above {self.epsilon:g}"
        return f"round {rounds} would need a delta above {delta:g} for epsilon {self.epsilon:g}"


@DEFENSES.register("global_dp", "geyer")
@validated_defense
class GlobalDP(Defense):
    """Clips each update as a whole to S and adds noise of std ``sigma`` * S to the sum.

    ``bound``: S is ``clip`` in all rounds (``fixed``) or the ``median`` norm of the updates of the round before,
    starting at ``clip`` (Geyer takes the same round's, which needs all of a round's updates at once).
    ``epsilon``: training stops before the round that would exceed it at the run's delta, towards a third party or
    another client. With ``max_delta``, epsilon is held fixed and training stops before its delta would exceed
    ``max_delta``, as Geyer does.
    """

    clip: Clip = 4.0
    sigma: Sigma = 6.0
    bound: Literal["fixed", "median"] = "fixed"
    epsilon: Positive | None = None
    max_delta: Delta | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "GlobalDP":
        noise_deviation(self.sigma, self.clip)
        if self.max_delta is not None and self.epsilon is None:
            raise ValueError("max_delta is the delta of a fixed epsilon; add for example epsilon=8")
        if self.epsilon is not None and self.sigma == 0:
            raise ValueError("without noise the budget is spent at once; raise sigma or drop epsilon")
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        kind = ClipForServer if self.bound == "fixed" else ClipToMedian
        clip = kind(self.clip, "whole", at=Point.ARRIVAL, symbol="S")
        noise = GaussianNoise(self.sigma, of=clip, at=Point.AGGREGATE)
        learning = [CountNorms(of=clip), LearnMedian(of=clip)] if self.bound == "median" else []
        stopping = [] if self.epsilon is None else [StopAtBudget(self.epsilon, self.max_delta, of=noise)]
        return [clip, noise, *learning, *stopping]
