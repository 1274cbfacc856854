"""What Bayesian accounting needs of a round: how large each contribution was when it was added up, before the noise."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.federation.context import RoundContext
from harness.federation.defense import LocalStep, NoisePlace
from harness.federation.examples import ExampleGradients
from harness.federation.recorders import RoundRecorder
from harness.federation.taps import Tap

Array = np.ndarray


@dataclass(frozen=True)
class RoundNorms:
    """L2 norms of what one round added up, clients in ascending order.

    Attributes:
        messages: each client's message as the server adds it up: (K,).
        apart: how far each message is from the mean of all: (K,); empty unless asked for.
        updates: each client's update before the client's own defense: (K,).
        examples: each example's gradient in each local step, as far as the step clips it: (K, L, B), NaN where a batch
            has no such example.
        steps: each client's whole step, the sum of its examples over the expected batch, without noise: (K, 1), where
            a round has one step and its noise is there.
    """

    messages: Array
    apart: Array
    updates: Array
    examples: Array
    steps: Array


class Watch(RoundRecorder):
    """Takes notes of every round that is played.

    ``place`` of the noise says what is worth measuring: examples only where clients add the noise. ``apart``: whether
    messages are kept until the end of the round, to be compared with their mean.
    """

    def __init__(self, place: NoisePlace, apart: bool = False) -> None:
        self._place: NoisePlace = place
        self._apart = apart
        self._kept: list[Tensor] = []
        self._messages: list[Array] = []
        self._updates: list[Array] = []
        self._examples: list[list[Array]] = []
        self._steps: list[list[Array]] = []

    def for_chunk(self) -> "Watch":
        return Watch(self._place, self._apart)

    def add(self, chunk: "Watch") -> None:
        self._messages += chunk._messages
        self._updates += chunk._updates
        self._kept += chunk._kept
        self._examples += chunk._examples
        self._steps += chunk._steps

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        """Measures the clipped gradients, where clients add the noise."""
        if self._place == "server":
            return
        if context.local_step == 0:
            self._examples.append([])
            self._steps.append([])
        norms = examples.norms()
        factors = torch.ones_like(norms) if made.clip_factors is None else made.clip_factors
        clipped = (norms * factors).double().square().sum(-1).sqrt()
        self._examples[-1].append(_array(clipped.masked_fill(~examples.present, torch.nan)))
        if self._place == "step" and context.cohort.steps_per_round == 1:
            whole = examples.weighted_sum(factors).double() / context.cohort.batch_size
            self._steps[-1].append(_array(whole.norm(dim=1)))

    def read(self, tap: Tap, values: Tensor) -> None:
        """Measures updates before the client's own transform, and messages after the server's."""
        if tap is Tap.UPDATE:
            self._updates.append(_array(values.double().norm(dim=1)))
        if tap is Tap.RECEIVED:
            self._messages.append(_array(values.double().norm(dim=1)))
            if self._apart:
                self._kept.append(values.detach().float())

    def take(self) -> RoundNorms:
        """What was measured since the last call; what was not, or a round without clients, is an empty array."""
        examples = [np.stack(steps, axis=1) for steps in _padded(self._examples)]
        steps = [np.stack(steps, axis=1) for steps in self._steps if steps]
        noted = RoundNorms(
            np.concatenate([np.zeros(0), *self._messages]),
            _from_the_mean(self._kept),
            np.concatenate([np.zeros(0), *self._updates]),
            np.concatenate(examples) if examples else np.zeros((0, 0, 0)),
            np.concatenate(steps) if steps else np.zeros((0, 0)),
        )
        self._messages, self._updates, self._kept, self._examples, self._steps = [], [], [], [], []
        return noted


def _from_the_mean(chunks: list[Tensor]) -> Array:
    """Distances (K,) of vectors (N, P) in chunks from the mean of all."""
    if not chunks:
        return np.zeros(0)
    mean = sum(row.double() for chunk in chunks for row in chunk) / sum(len(chunk) for chunk in chunks)
    return np.concatenate([_array((chunk.double() - mean).norm(dim=1)) for chunk in chunks])


def _padded(chunks: list[list[Array]]) -> list[list[Array]]:
    """Batches (N, B) of all steps and chunks at the width of the largest."""
    width = max((batch.shape[1] for steps in chunks for batch in steps), default=0)
    return [
        [np.pad(batch, ((0, 0), (0, width - batch.shape[1])), constant_values=np.nan) for batch in steps]
        for steps in chunks
    ]


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()
