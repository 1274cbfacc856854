"""What Bayesian accounting needs of a round: how large each contribution was when it was added up, before the noise."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.defenses import Defense, ExampleGradients, LocalStep, RoundContext

Array = np.ndarray


@dataclass(frozen=True)
class RoundNorms:
    """L2 norms of what one round added up, clients in ascending order.

    Attributes:
        messages: each client's message as the server adds it up: (K,).
        updates: each client's update before the client's own defense: (K,).
        examples: each example's gradient in each local step, as far as the step clips it: (K, L, B), NaN where a batch
            has no such example.
        steps: each client's whole step, the sum of its examples over the expected batch, without noise: (K, L).
    """

    messages: Array
    updates: Array
    examples: Array
    steps: Array


class Watch:
    """A defense that takes notes: every hook does and gives what that of the defense does."""

    def __init__(self, defense: Defense) -> None:
        self._defense = defense
        self._messages: list[Array] = []
        self._updates: list[Array] = []
        self._examples: list[list[Array]] = []
        self._steps: list[list[Array]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._defense, name)

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        """The defense's, whose clipped gradients are measured."""
        result = self._defense.client_step(per_example, context)
        if context.local_step == 0:
            self._examples.append([])
            self._steps.append([])
        norms = per_example.norms()
        factors = torch.ones_like(norms) if result.clip_factors is None else result.clip_factors
        clipped = (norms * factors).double().square().sum(-1).sqrt()
        # A place that no example was drawn for has norm 0. Leaving a true 0 out as well only raises the estimates.
        self._examples[-1].append(_array(clipped.masked_fill(clipped == 0, torch.nan)))
        whole = per_example.weighted_sum(factors).double() / context.cohort.batch_size
        self._steps[-1].append(_array(whole.norm(dim=1)))
        return result

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        """The defense's, whose argument is measured."""
        self._updates.append(_array(update.double().norm(dim=1)))
        return self._defense.client_message(update, context)

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        """The defense's, whose result is measured."""
        received = self._defense.server_receive(message, context)
        self._messages.append(_array(received.double().norm(dim=1)))
        return received

    def take(self) -> RoundNorms:
        """What was measured since the last call; a round without clients has empty arrays."""
        chunks = [np.stack(steps, axis=1) for steps in _padded(self._examples)]
        noted = RoundNorms(
            np.concatenate([np.zeros(0), *self._messages]),
            np.concatenate([np.zeros(0), *self._updates]),
            np.concatenate(chunks) if chunks else np.zeros((0, 0, 0)),
            np.concatenate([np.stack(steps, axis=1) for steps in self._steps]) if chunks else np.zeros((0, 0)),
        )
        self._messages, self._updates, self._examples, self._steps = [], [], [], []
        return noted


def _padded(chunks: list[list[Array]]) -> list[list[Array]]:
    """Batches (N, B) of all steps and chunks at the width of the largest."""
    width = max((batch.shape[1] for steps in chunks for batch in steps), default=0)
    return [
        [np.pad(batch, ((0, 0), (0, width - batch.shape[1])), constant_values=np.nan) for batch in steps]
        for steps in chunks
    ]


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()
