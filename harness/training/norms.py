"""Norms of a round for Bayesian accounting: how large each contribution was when added up, before the noise."""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.federation.context import RoundContext
from harness.federation.defense import FixedNoise, LocalStep, NoisePlace
from harness.federation.examples import ExampleGradients
from harness.federation.recorders import RoundRecorder
from harness.federation.taps import Tap
from harness.results.atomic import write_atomic
from harness.results.files import Absent, Damaged, parse_arrays, read_bytes
from harness.training.settings import TrainSettings

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
        """Return what was measured since the last call; what was not, or a round without clients, is an empty array."""
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


# The files of a run's norms: one per round, so that a stopped run goes on where it was.

_DIMENSIONS = {"messages": 1, "apart": 1, "updates": 1, "examples": 3, "steps": 2}
_NO_PART_OF_THE_ROUND = ("device", "rounds")


class NormsFolder:
    """The norms of one run, ``norms/round_00001.npz`` and so on, each with the noise they were hidden by."""

    def __init__(self, path: Path, settings: TrainSettings) -> None:
        self._path = path / "norms"
        shared = settings.model_dump(mode="json", exclude=set(_NO_PART_OF_THE_ROUND))
        self._run = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    def write(self, number: int, norms: RoundNorms, noise: FixedNoise) -> None:
        """Writes one round, counted from 1, whole or not at all."""
        content = {name: getattr(norms, name) for name in _DIMENSIONS}
        content |= {"noise": np.array([noise.deviation, noise.bound]), "names": np.array([noise.place, self._run])}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **content)
        write_atomic(self._file(number), buffer.getvalue())

    def read(self, rounds: int) -> tuple[list[RoundNorms], FixedNoise]:
        """The norms of so many rounds.

        Raises:
            UsageError: one of the rounds was trained without taking notes, or with other settings.
        """
        read = [self._read(number) for number in range(1, rounds + 1)]
        if not read:
            raise UsageError("no round has been trained, so there is nothing to account for; train with --bayesian")
        return [norms for norms, _ in read], read[0][1]

    def _read(self, number: int) -> tuple[RoundNorms, FixedNoise]:
        fix = "train from the start with --bayesian and without --resume"
        path = self._file(number)
        try:
            saved = parse_arrays(read_bytes(path), (*_DIMENSIONS, "noise", "names"))
            if problem := _problem(saved):
                raise Damaged(f"is damaged: {problem}")
        except Absent as error:
            raise UsageError(f"round {number} was trained without --bayesian; {fix}") from error
        except Damaged as problem:
            raise UsageError(f"{str(path)!r} {problem}; {fix}") from problem
        place, run = saved["names"].tolist()
        if run != self._run:
            raise UsageError(f"the norms of round {number} are of other settings; {fix}")
        return RoundNorms(*(saved[name] for name in _DIMENSIONS)), FixedNoise(place, *saved["noise"].tolist())

    def _file(self, number: int) -> Path:
        return self._path / f"round_{number:05d}.npz"


def _problem(saved: dict[str, np.ndarray]) -> str | None:
    """Return what in a round's arrays no run wrote; None where nothing is wrong."""
    noise, names = saved["noise"], saved["names"]
    if noise.shape != (2,) or noise.dtype.kind != "f" or not (np.isfinite(noise) & (noise > 0)).all():
        return "'noise' is no deviation and bound above 0"
    if names.shape != (2,) or names.dtype.kind != "U" or names[0] not in get_args(NoisePlace):
        return "'names' are not those of a place and a run"
    clients = saved["messages"].shape[:1]
    for name, dimensions in _DIMENSIONS.items():
        norms = saved[name]
        if norms.ndim != dimensions or norms.dtype not in (np.float32, np.float64):
            return f"{name!r} are no norms"
        if norms.shape[:1] != clients and (len(norms) or name == "updates"):
            return f"{name!r} are not those of the clients of 'messages'"
        # An example that a batch lacks has NaN for a norm.
        if not (((norms >= 0) & (norms < np.inf)) | (np.isnan(norms) & (name == "examples"))).all():
            return f"{name!r} are no norms"
    return None
