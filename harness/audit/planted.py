"""Canary clients in a running federation: a mod plants them, and an audit looks for them in the released models.

Each of m clients of a Flower job sends an update of its own in every round that it takes part in: a secret direction at
the length of the clip if its coin says so, and otherwise a thousandth of that: Flower's clips divide by the length of a
change. Nobody but the auditor knows the coins. How well they are guessed from what the job released bounds from below
the epsilon of all its rounds together.

Sources: G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. Suriyakumar, "One-shot Empirical Privacy Estimation
for Federated Learning", ICLR 2024 (canary clients); the bound of Steinke, Nasr, Jagielski 2023, as in
:mod:`harness.audit.canaries`, which takes no law of the scores for granted.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.audit.canaries import audit_lower_bound, coins
from harness.base.errors import UsageError
from harness.base.randomness import Stream

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
    """What the released models of a job tell of its canary clients.

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
        """Whether the job keeps no such epsilon."""
        return self.epsilon is not None and self.lower_bound > self.epsilon

    def lines(self) -> list[str]:
        """In words."""
        lines = [
            f"canary clients: {self.canaries}, of whose coins {self.correct} of {self.guesses} were guessed rightly",
            f"epsilon of these {self.rounds} rounds together is at least {self.lower_bound:.2f} "
            f"({self.confidence:.0%} confidence, delta {self.delta:g})",
        ]
        if self.epsilon is not None:
            said = "refuted: less noise is on than that takes" if self.refuted else "consistent with it"
            lines.append(f"stated: epsilon {self.epsilon:g}, {said}")
        return lines

    def record(self) -> dict[str, Any]:
        """As JSON."""
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
    if not 0 < 2 * half <= canaries:
        raise UsageError(f"--guesses must be an even number from 2 to the {canaries} canaries, got {guesses}")
    # Ties, as where nothing moved, are broken by chance and not by the order of clients.
    order = Stream(seed, "planted ties").permutation(canaries)
    order = order[scores[order].argsort(descending=True, stable=True)]
    included = coins(seed, canaries)
    correct = int(included[order[:half]].sum() + (~included[order[-half:]]).sum())
    bound = audit_lower_bound(canaries, half, half, correct, delta, confidence)
    return Planted(end - begin, canaries, 2 * half, correct, bound, delta, confidence, epsilon)
