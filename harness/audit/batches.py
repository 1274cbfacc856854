"""Who holds what in an audited round: canaries and real examples are dealt to clients, and drawn into their steps."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.audit.canaries import Canaries, ExamplesAndCanaries
from harness.audit.settings import AuditSettings
from harness.base.randomness import Stream, poisson_sample

RealGradients = Callable[[Tensor, Tensor], Tensor]
"""Per-example gradients (N, C, P) at weights (N, P) of the real examples at places (N, C)."""


@dataclass(frozen=True)
class Dealt:
    """What each of N clients has of a row of things: their places (N, C) in it, and which of these are ``held``."""

    places: Tensor
    held: Tensor


def deal(things: Tensor, holders: int, clients: int) -> Dealt:
    """Deals things (n,), by number, in turn to the first ``holders`` of some clients."""
    each = -(-len(things) // holders)
    turns = torch.arange(clients)[:, None] + holders * torch.arange(each)
    held = (turns < len(things)) & (torch.arange(clients) < holders)[:, None]
    return Dealt(things[turns.where(held, 0)], held)


@dataclass(frozen=True)
class PlayedExamples:
    """Canaries, the coins that say which are in, and the real examples beside them.

    Attributes:
        included: (m,), the coins.
        real: gradients of the real examples, which the auditor knows and takes away; None without.
    """

    settings: AuditSettings
    canaries: Canaries
    included: Tensor
    real: RealGradients | None

    def deal_real(self, holders: int, clients: int) -> Dealt:
        """Who has which of the real examples."""
        return deal(torch.arange(0 if self.real is None else self.settings.others), holders, clients)

    def batch(self, now: int, step: int, weights: Tensor, canaries: Dealt, real: Dealt) -> ExamplesAndCanaries:
        """What Poisson sampling takes into a step of N clients at weights (N, P); a canary that is out is not there."""
        settings = self.settings
        random = Stream(settings.seed, "audit sample", now, step)
        taken = poisson_sample((settings.canaries,), settings.sampling_rate, random)
        chosen = poisson_sample((0 if self.real is None else settings.others,), settings.sampling_rate, random)
        there = (taken & self.included)[canaries.places] & canaries.held
        chosen = chosen[real.places] & real.held
        gradients = torch.zeros(len(weights), 0, weights.shape[1])
        if self.real is not None:
            gradients = self.real(weights, real.places) * chosen[..., None]
        return ExamplesAndCanaries(
            gradients, chosen, self.canaries.positions[canaries.places], there, self.canaries.tensors,
            self.canaries.layout.sizes,
        )  # fmt: skip
