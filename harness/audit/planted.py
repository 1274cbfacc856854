"""Canaries: clients that a mod plants in a running federation, and (below) those of a federation that is played here.

Each of m clients of a Flower job sends an update of its own in every round that it takes part in: a secret direction at
the length of the clip if its coin says so, and otherwise a thousandth of that: Flower's clips divide by the length of a
change. Nobody but the auditor knows the coins. How well they are guessed from what the job released bounds from below
the epsilon of all its rounds together.

Sources: G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. Suriyakumar, "One-shot Empirical Privacy Estimation
for Federated Learning", ICLR 2024 (canary clients); the bound of Steinke, Nasr, Jagielski 2023, as
below, which takes no law of the scores for granted.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from harness.audit.settings import AuditSettings
from harness.base.errors import UsageError
from harness.base.randomness import Stream, poisson_sample
from harness.base.vectors import Layout, group_sums, spread

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
_PARTITION = "partition-id"
_FEWEST = 20
# What a canary whose coin says no sends of its direction: both coins are less than the clip apart.
_LITTLE = 1e-3


def direction(seed: int, canary: int, size: int) -> Tensor:
    """The secret direction (P,) of a canary client, of length 1, float64."""
    made = torch.from_numpy(np.random.default_rng([seed, canary]).standard_normal(size))
    return made / made.norm()


def canary_mod(seed: int, canaries: int, norm: float) -> Mod:
    """A client mod by which the first clients of a Flower job become canaries.

    A client's number is the ``partition-id`` of its ``node_config``. Put the mod last among the mods, so that what
    clips or adds noise at clients acts on canaries too. Clients beyond the first ``canaries`` train as ever.

    Args:
        seed: of coins and directions; keep it to yourself.
        canaries: m, at least 20. norm: the length of a canary's update; the bound of the job's clip.

    Raises:
        UsageError: a number is out of range; in a round, a client has no number.
    """
    if canaries < _FEWEST or seed < 0 or not 0 < norm < np.inf:
        raise UsageError(f"canary_mod takes a seed from 0 on, {_FEWEST} canaries or more, and a norm above 0")
    included = coins(seed, canaries)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        answer = call_next(message, context)
        if not str(message.metadata.message_type).startswith("train") or answer.has_error():
            return answer
        number = dict(context.node_config).get(_PARTITION)
        if number is None:
            raise UsageError(f"this client has no {_PARTITION} in its node_config, by which canaries are told; set it")
        if int(number) < canaries:
            _replace(answer, message, seed, int(number), norm if included[int(number)] else _LITTLE * norm)
        return answer

    return mod


def _replace(answer: Any, message: Any, seed: int, canary: int, norm: float) -> None:
    """Makes a client's answer what it was sent, moved along the canary's direction."""
    got, sent = (list(one.content.array_records.values()) for one in (message, answer))
    if len(got) != 1 or len(sent) != 1 or set(got[0]) != set(sent[0]):
        raise UsageError(
            "a canary client answers with the model that it got; send one set of arrays, in both directions"
        )
    before = {name: np.array(array.numpy()) for name, array in got[0].items()}
    moved = norm * direction(seed, canary, sum(values.size for values in before.values())).numpy()
    start = 0
    for name in sorted(before):
        values = before[name]
        part = moved[start : start + values.size].reshape(values.shape)
        start += values.size
        made, kind = (values + part).astype(values.dtype), type(sent[0][name])
        sent[0][name] = getattr(kind, "from_numpy_ndarray", kind)(made)


@dataclass(frozen=True)
class Planted:
    """Findings about the canary clients of a job, from its released models.

    Attributes:
        rounds: from the first model to the last.
        canaries, guesses, correct: m, how many coins were guessed, half in and half out, and how many rightly.
        lower_bound: of the epsilon of all rounds from the first model to the last, at ``confidence`` and ``delta``.
        epsilon: what is proven or claimed of these rounds, as named; None where nothing is.
    """

    rounds: int
    canaries: int
    guesses: int
    correct: int
    lower_bound: float
    delta: float
    confidence: float
    epsilon: float | None

    @property
    def refuted(self) -> bool:
        """Return whether the job keeps no such epsilon."""
        return self.epsilon is not None and self.lower_bound > self.epsilon

    def lines(self) -> list[str]:
        """Return the findings in words, line by line."""
        lines = [
            f"canary clients: {self.canaries}, of whose coins {self.correct} of {self.guesses} were guessed rightly",
            f"epsilon of these {self.rounds} rounds together is at least {lower(self.lower_bound)} "
            f"({self.confidence:.0%} confidence, delta {self.delta:g})",
        ]
        if self.epsilon is not None:
            said = "refuted: less noise is on than that takes" if self.refuted else "consistent with it"
            lines.append(f"stated: epsilon {self.epsilon:g}, {said}")
            design = self.canaries, self.guesses, self.delta, self.confidence
            if powerless := cannot_refute(self.epsilon, *design):
                lines.append(powerless)
        return lines

    def record(self) -> dict[str, Any]:
        """Return the findings as values for JSON."""
        return asdict(self) | {"refuted": self.refuted}


def audit_released(
    models: Mapping[int, Mapping[str, NDArray[Any]]], seed: int, canaries: int, guesses: int | None = None,
    delta: float = 1e-5, confidence: float = 0.95, epsilon: float | None = None,
) -> Planted:  # fmt: skip
    """Guess the coins of canary clients from the models that a job released, by the rounds that began with them.

    The same noise is on all rounds, and canaries send the same in each, so that the whole way is the best of scores.

    Raises:
        UsageError: fewer than two models, of other arrays, or numbers out of range.
    """
    if len(models) < 2:
        raise UsageError(f"{len(models)} model(s) show no round; capture the model before the first and after the last")
    if canaries < _FEWEST:
        raise UsageError(f"{canaries} canaries can prove nothing; take at least {_FEWEST}, better 100")
    begin, end = min(models), max(models)
    first, last = models[begin], models[end]
    if {name: values.shape for name, values in first.items()} != {name: one.shape for name, one in last.items()}:
        raise UsageError("the first and the last model are not of the same arrays; name captures of one job")
    names = sorted(first)
    way = np.concatenate([(last[name].astype(np.float64) - first[name]).ravel() for name in names])
    if not np.isfinite(way).all():
        raise UsageError("the last model has numbers that are not finite; name captures up to the round before")
    moved = torch.from_numpy(way)
    scores = torch.stack([direction(seed, one, len(way)) @ moved for one in range(canaries)])
    half = (canaries // 5 if guesses is None else guesses) // 2
    if not 0 < 2 * half <= canaries or guesses not in (None, 2 * half):
        raise UsageError(f"--guesses must be an even number from 2 to the {canaries} canaries, got {guesses}")
    # Ties, as where nothing moved, are broken by chance and not by the order of clients.
    order = Stream(seed, "planted ties").permutation(canaries)
    order = order[scores[order].argsort(descending=True, stable=True)]
    included = coins(seed, canaries)
    correct = int(included[order[:half]].sum() + (~included[order[-half:]]).sum())
    bound = audit_lower_bound(canaries, half, half, correct, delta, confidence)
    return Planted(end - begin, canaries, 2 * half, correct, bound, delta, confidence, epsilon)


# --------------------------------------------------------------------------------------
# Canaries: crafted gradients or updates that a defense must hide, the coins that say which ones are in, and a bound.
#
# The one-run audit says how large epsilon must at least be, given how well guesses about canaries came out. Each of m
# canaries is included with probability one half, independently; the auditor guesses the k_plus likeliest to be in and
# the k_minus likeliest to be out, numbers chosen before looking, and abstains on the rest.
#
# Sources: Dirac canaries, Nasr et al., "Tight Auditing of Differentially Private Machine Learning", 2023; the bound,
# Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", 2023. See docs/accounting.md.


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
        """Return the canaries on another device."""
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
        """Mask (N, R + C) of the places of the batch that hold an example or a canary."""
        return torch.cat([self.chosen, self.there], 1)

    def without_canaries(self) -> "ExamplesAndCanaries":
        """Return these gradients with every canary out of the batch."""
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
    """Shares of N clients in a row of things: the ``places`` (N, C) in the row, and which of these places are
    ``held``."""

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
        """Return which of the clients has which of the real examples."""
        count = 0 if self.real is None else self.settings.others
        return deal(torch.arange(count, device=self.included.device), holders, clients)

    def batch(self, now: int, step: int, weights: Tensor, canaries: Dealt, real: Dealt) -> ExamplesAndCanaries:
        """Return what Poisson sampling takes into a step of N clients at weights (N, P); a canary that is out is not
        there."""
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


def lower(bound: float) -> str:
    """A lower bound with two decimals, rounded down: the nearest number may be above what was proven."""
    return f"{math.floor(100 * bound + 1e-6) / 100:.2f}"


def cannot_refute(stated: float, canaries: int, guesses: int, delta: float, confidence: float) -> str | None:
    """Return why not even right guesses, half of them *in*, would refute a stated epsilon, and how many guesses would.
    None where so many guesses can refute it."""

    def proven(count: int) -> float:
        return audit_lower_bound(canaries, count // 2, count // 2, count // 2 * 2, delta, confidence)

    if not math.isfinite(stated) or (most := proven(guesses)) > stated:
        return None
    counts = range(guesses // 2 * 2 + 2, canaries + 1, 2)
    enough = bisect_right(counts, stated, key=proven)
    advice = f"at least --guesses {counts[enough]}, or more --canaries" if enough < len(counts) else "more --canaries"
    return f"{guesses} right guesses would prove {lower(most)}, so that {stated:.3g} cannot be refuted; take {advice}"
