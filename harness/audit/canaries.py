"""Canaries: crafted gradients or updates that a defense must hide, the coins that say which ones are in, and a bound.

The one-run audit says how large epsilon must at least be, given how well guesses about canaries came out. Each of m
canaries is included with probability one half, independently; the auditor guesses the k_plus likeliest to be in and the
k_minus likeliest to be out, numbers chosen before looking, and abstains on the rest.

Sources: Dirac canaries, Nasr et al., "Tight Auditing of Differentially Private Machine Learning", 2023; the bound,
Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", 2023. See docs/accounting.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from harness.audit.settings import AuditSettings
from harness.base.errors import UsageError
from harness.base.randomness import Stream, poisson_sample
from harness.base.vectors import Layout, group_sums, spread

LARGE = 1000.0
"""A canary's value at each of its coordinates: far beyond any clip, so that clipping leaves it as large as allowed."""


def coins(seed: int, count: int) -> Tensor:
    """Fair coins (m,): which canaries are in."""
    return Stream(seed, "audit coins").uniform((count,)) < 0.5


@dataclass(frozen=True)
class Canaries:
    """m crafted vectors, each with one coordinate in each of S parameter tensors.

    Attributes:
        positions: (m, S), the coordinates inside the flat vector.
        tensors: (S,), which parameter tensor each column lies in.
        layout: of the flat vector.
    """

    positions: Tensor
    tensors: Tensor
    layout: Layout

    def dense(self, rows: slice, present: Tensor) -> Tensor:
        """The canaries of ``rows`` as vectors (N, P), zero where ``present`` (N,) says that one is out."""
        positions = self.positions[rows]
        vectors = torch.zeros(len(positions), self.layout.total, device=positions.device)
        return vectors.scatter_(1, positions, LARGE * present[:, None].float().expand_as(positions))

    def to(self, device: torch.device) -> "Canaries":
        """The same on another device."""
        return replace(self, positions=self.positions.to(device), tensors=self.tensors.to(device))


def make_canaries(layout: Layout, count: int, seed: int, orthogonal: bool) -> Canaries:
    """Canaries at random coordinates.

    ``orthogonal``: no two share a coordinate, so that all of them fit into one sum; they then use only the tensors
    with at least ``count`` coordinates. Otherwise each uses every tensor, the most that per-layer clipping lets pass.

    Raises:
        UsageError: no tensor has room for so many orthogonal canaries.
    """
    room = [tensor for tensor, size in enumerate(layout.sizes) if size >= count or not orthogonal]
    if not room:
        raise UsageError(
            f"{count} canaries do not fit side by side into this model, whose largest tensor has {max(layout.sizes)} "
            "numbers; lower --canaries or add --canary alone"
        )
    columns = []
    for tensor in room:
        random, size = Stream(seed, "audit canaries", tensor), layout.sizes[tensor]
        chosen = random.permutation(size)[:count] if orthogonal else random.choices(count, size)
        columns.append(chosen + sum(layout.sizes[:tensor]))
    return Canaries(torch.stack(columns, 1), torch.tensor(room), layout)


@dataclass(frozen=True)
class ExamplesAndCanaries:
    """Per-example gradients of N clients: R real examples each, then canaries that are never written out in full.

    Attributes:
        real: (N, R, P), zero for those that are not in this step's batch.
        chosen: (N, R), which of them are.
        positions: (N, C, S), coordinates of each client's canaries.
        there: (N, C), which canaries are in this step's batch.
        tensors: (S,), which parameter tensor each coordinate lies in.
        sizes: of the M parameter tensors.
    """

    real: Tensor
    chosen: Tensor
    positions: Tensor
    there: Tensor
    tensors: Tensor
    sizes: tuple[int, ...]

    @property
    def present(self) -> Tensor:
        """Which places (N, R + C) of the batch hold an example or a canary."""
        return torch.cat([self.chosen, self.there], 1)

    def without_canaries(self) -> "ExamplesAndCanaries":
        """The same with every canary out."""
        return replace(self, there=torch.zeros_like(self.there))

    def norms(self) -> Tensor:
        """L2 norms (N, R + C, M) per parameter tensor."""
        crafted = self.real.new_zeros(*self.there.shape, len(self.sizes))
        crafted[..., self.tensors] = LARGE * self.there[..., None].float()
        return torch.cat([group_sums(self.real.square(), self.sizes).sqrt(), crafted], 1)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, R + C, M): (N, P)."""
        examples = self.real.shape[1]
        total = (self.real * spread(factors[:, :examples], self.sizes)).sum(1)
        crafted = factors[:, examples:, self.tensors] * LARGE * self.there[..., None]
        return total.scatter_add(1, self.positions.flatten(1), crafted.flatten(1))

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        rows = self.real.shape[1] + self.there.shape[1]
        return self.weighted_sum(self.real.new_ones(len(self.real), rows, len(self.sizes))) / rows

    def materialise(self) -> Tensor:
        """The gradients (N, R + C, P)."""
        crafted = self.real.new_zeros(*self.there.shape, self.real.shape[-1])
        crafted.scatter_(2, self.positions, LARGE * self.there[..., None].float().expand(self.positions.shape))
        return torch.cat([self.real, crafted], 1)


# Who holds what in an audited round: canaries and real examples are dealt to clients, and drawn into their steps.

RealGradients = Callable[[Tensor, Tensor], Tensor]
"""Per-example gradients (N, C, P) at weights (N, P) of the real examples at places (N, C)."""


@dataclass(frozen=True)
class Dealt:
    """What each of N clients has of a row of things: their places (N, C) in it, and which of these are ``held``."""

    places: Tensor
    held: Tensor


def deal(things: Tensor, holders: int, clients: int) -> Dealt:
    """Deals things (n,), by number, in turn to the first ``holders`` of some clients."""
    each, numbers = -(-len(things) // holders), torch.arange(clients, device=things.device)
    turns = numbers[:, None] + holders * torch.arange(each, device=things.device)
    held = (turns < len(things)) & (numbers < holders)[:, None]
    return Dealt(things[turns.where(held, 0)], held)


@dataclass(frozen=True)
class PlayedExamples:
    """Canaries, the coins that say which are in, and the real examples beside them.

    Attributes:
        included: (m,), the coins, on the device of the canaries.
        real: gradients of the real examples, which the auditor knows and takes away; None without.
    """

    settings: AuditSettings
    canaries: Canaries
    included: Tensor
    real: RealGradients | None

    def deal_real(self, holders: int, clients: int) -> Dealt:
        """Who has which of the real examples."""
        count = 0 if self.real is None else self.settings.others
        return deal(torch.arange(count, device=self.included.device), holders, clients)

    def batch(self, now: int, step: int, weights: Tensor, canaries: Dealt, real: Dealt) -> ExamplesAndCanaries:
        """What Poisson sampling takes into a step of N clients at weights (N, P); a canary that is out is not there."""
        settings = self.settings
        random = Stream(settings.seed, "audit sample", now, step)
        taken = poisson_sample((settings.canaries,), settings.sampling_rate, random).to(weights.device)
        others = 0 if self.real is None else settings.others
        chosen = poisson_sample((others,), settings.sampling_rate, random).to(weights.device)
        there = (taken & self.included)[canaries.places] & canaries.held
        chosen = chosen[real.places] & real.held
        gradients = weights.new_zeros(len(weights), 0, weights.shape[1])
        if self.real is not None:
            gradients = self.real(weights, real.places) * chosen[..., None]
        return ExamplesAndCanaries(
            gradients, chosen, self.canaries.positions[canaries.places], there, self.canaries.tensors,
            self.canaries.layout.sizes,
        )  # fmt: skip


_LARGEST_EPSILON = 50.0


def audit_p_value(epsilon: float, canaries: int, guesses: int, correct: int, delta: float = 0.0) -> float:
    """The p-value of the hypothesis that the mechanism is (epsilon, delta)-DP.

    Args:
        epsilon: at least 0.
        canaries: m, how many canaries were flipped.
        guesses: r = k_plus + k_minus, at most m.
        correct: how many guesses were right, at most r.
        delta: in [0, 1).
    """
    if guesses == 0:
        return 1.0
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    # The most that delta can add: P[v > X >= v - i] / i, at its worst i in 1..v.
    missed = np.arange(1, correct + 1)
    below = binom.sf(correct - missed - 1, guesses, right) - tail
    return min(1.0, tail + 2 * canaries * delta * float(np.max(below / missed)))


def audit_lower_bound(
    canaries: int, k_plus: int, k_minus: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The largest epsilon, at least 0, that the guesses refute at the given confidence.

    Raises:
        UsageError: more guesses than canaries, more right guesses than guesses, or a share out of range.
    """
    guesses = k_plus + k_minus
    if min(canaries, k_plus, k_minus, correct) < 0 or guesses > canaries or correct > guesses:
        raise UsageError(f"{correct} right of {guesses} guesses about {canaries} canaries cannot be; check the counts")
    if not 0 <= delta < 1:
        raise UsageError(f"delta must lie in [0, 1), got {delta:g}")
    if not 0 < confidence < 1:
        raise UsageError(f"the confidence must lie in (0, 1), got {confidence:g}; choose for example 0.95")
    refuted, open_ = 0.0, _LARGEST_EPSILON
    if audit_p_value(refuted, canaries, guesses, correct, delta) >= 1 - confidence:
        return 0.0
    while open_ - refuted > 1e-9:
        middle = (refuted + open_) / 2
        small = audit_p_value(middle, canaries, guesses, correct, delta) < 1 - confidence
        refuted, open_ = (middle, open_) if small else (refuted, middle)
    return refuted
