"""Federated training under a defense: rounds of sampled clients, all at once, streamed in chunks."""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from harness.base.errors import UsageError
from harness.base.limits import forecast, require_memory, seconds_of
from harness.datasets import Dataset, load_dataset
from harness.datasets.partition import most_examples
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode
from harness.privacy import repeatable
from harness.results.atomic import claimed
from harness.results.environment import environment
from harness.results.files import Damaged
from harness.results.training import RoundRecord, TrainDocument
from harness.training.checkpoint import TrainFolder
from harness.training.clients import TrainsChunks
from harness.training.rounds import Training, affordable_rounds, chunks_of, claimed_after, statements_after
from harness.training.settings import TrainSettings

# How well the global model does on the test part.

_BATCH = 500


def accuracy_of(model: RowModel, weights: Tensor, test: Dataset) -> tuple[float, float]:
    """Accuracy in [0, 1] and mean cross-entropy of weights (P,) on a dataset."""
    module = model.plain(weights)
    right, loss = 0, 0.0
    with torch.no_grad(), in_evaluation_mode(module):
        for first in range(0, len(test.labels), _BATCH):
            images = test.images[first : first + _BATCH].to(weights)
            labels = test.labels[first : first + _BATCH].to(weights.device)
            logits = module(images)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return right / len(test.labels), loss / len(test.labels)


class RunNotes(Protocol):
    """Notes that are written down of a run beside its results."""

    def write(self, number: int) -> None:
        """Writes what was measured in a round, counted from 1."""
        ...

    def statements(self, rounds: int) -> list[dict[str, Any]]:
        """Return what follows from the notes of so many rounds, as rows of the run's document."""
        ...


TakesNotes = Callable[[Training, Path, int], RunNotes]
"""Begins to take notes of a run in a folder, where so many rounds are done already."""


class ParallelTraining(Protocol):
    """Processes that train the chunks of a round."""

    @property
    def jobs(self) -> int:
        """Number of processes."""
        ...

    def of(self, run: Training) -> AbstractContextManager[TrainsChunks]:
        """Return a context around the rounds of a run: it gives what trains the run's chunks."""
        ...


class DivergedError(UsageError):
    """The weights are no longer numbers."""


@dataclass(frozen=True)
class TrainOptions:
    """Options of how a run is carried out; only ``secret`` changes a number.

    Attributes:
        chunk: clients trained together; bounds memory. evaluate_every: rounds between two measurements.
        keep: rounds whose model is kept for attacks; the initial model is round 0.
        notes: takes notes of every round, for Bayesian accounting; see :class:`harness.training.bayesian.Notes`.
        parallel: trains chunks elsewhere; see :class:`harness.parallel.processes.Processes`.
        secret: noise and sampling take a key of the operating system, kept in the folder, instead of the seed.
    """

    chunk: int = 25
    evaluate_every: int = 1
    keep: tuple[int, ...] = ()
    resume: bool = False
    notes: TakesNotes | None = None
    parallel: ParallelTraining | None = None
    on_round: Callable[[RoundRecord], None] = field(default=lambda record: None)
    secret: bool = False

    @property
    def jobs(self) -> int:
        """Chunks that are trained at a time."""
        return 1 if self.parallel is None else self.parallel.jobs


def require_rounds(kept: Iterable[int], rounds: int) -> None:
    """Raises UsageError: a round whose model is to be kept is none of the run's."""
    for number in kept:
        if not 0 <= number <= rounds:
            raise UsageError(f"--keep-rounds {number}: the run has models of rounds 0 to {rounds}; name one of them")


def train(settings: TrainSettings, data_root: Path, folder: TrainFolder, options: TrainOptions) -> TrainDocument:
    """Trains until the rounds, the budget or the defense end it; writes a checkpoint after every round.

    Raises:
        UsageError: impossible settings or data, a budget already exceeded, a checkpoint of other settings.
    """
    began = time.perf_counter()
    require_rounds(options.keep, settings.rounds)
    _require_memory(settings, options)
    run = Training(settings, data_root)
    last = affordable_rounds(settings, run.defense, run.model.layout, run.holdings)
    spread = options.parallel.of(run) if options.parallel else nullcontext(run.train_chunks)
    with claimed(folder.path, None if options.resume else "training.json"), spread as run.train_chunks:
        what = f"{settings.rounds} rounds of {settings.local_steps} local steps"
        forecast(_seconds(settings, options, run.model.layout.total), what, max(2, options.jobs), at_least=True)
        return _train(run, folder, options, last, began)


def _train(run: Training, folder: TrainFolder, options: TrainOptions, last: int, began: float) -> TrainDocument:
    settings = run.settings
    stopped = None if last == settings.rounds else f"round {last + 1} would exceed epsilon {settings.target_epsilon:g}"
    records, kept = _resumed(run, folder, options.secret) if options.resume else ([], [])
    if options.secret and not records:
        run.key = folder.new_key()
    notes = options.notes(run, folder.path, len(records)) if options.notes else None
    if not records:
        kept = _keep(run, folder, options, 0)
    for round_index in range(len(records), last):
        stopped_by = run.defense.finished(settings.facts(run.model.layout, round_index + 1))
        if stopped_by and not records:
            raise UsageError(f"the budget is exceeded before anything is learned: {stopped_by}; raise epsilon or sigma")
        if stopped_by:
            stopped = stopped_by
            break
        record = _one_round(run, round_index, options, last)
        records.append(record)
        kept += _keep(run, folder, options, round_index + 1)
        if notes:
            notes.write(round_index + 1)
        folder.save(settings, run.sources, run.weights, run.state(), records, kept, run.key)
        options.on_round(record)
    if records and records[-1].accuracy is None:
        # The defense ended the run between two measurements, or it was planned to be longer.
        records[-1] = records[-1].model_copy(update=_measured(run, len(records)))
        folder.save(settings, run.sources, run.weights, run.state(), records, kept, run.key)
    bayesian = notes.statements(len(records)) if notes and records else []
    document = _document(run, records, stopped, folder.kept(kept), time.perf_counter() - began, bayesian)
    folder.write(document)
    return document


def _require_memory(settings: TrainSettings, options: TrainOptions) -> None:
    """For which examples every client holds, and which of them each local step of the clients of a chunk takes."""
    places = settings.client_examples if settings.batch_sampling == "poisson" else settings.batch_size
    together = min(options.chunk, settings.clients_per_round) * settings.local_steps * places
    numbers = (settings.clients * settings.client_examples + together) * options.jobs
    require_memory(8 * numbers, "such a federation", "lower clients, examples, local_steps, batch_size or --chunk")


def _seconds(settings: TrainSettings, options: TrainOptions, weights: int) -> float:
    """Return what the local steps of a network with so many weights take at least; a chunk's clients take theirs
    together."""
    one_after_another = math.ceil(chunks_of(settings, options.chunk) / options.jobs)
    steps = settings.rounds * settings.local_steps
    gradients = steps * settings.clients_per_round * settings.batch_size
    return seconds_of(steps * one_after_another, gradients * 2 // max(2, options.jobs), weights)


def _one_round(run: Training, round_index: int, options: TrainOptions, last: int) -> RoundRecord:
    began = time.perf_counter()
    means, participants = run.play_round(round_index, options.chunk)
    done = round_index + 1
    if not run.weights.isfinite().all():
        raise DivergedError(f"training diverged in round {done}: weights hold NaN or infinity; lower the learning rate")
    measured = _measured(run, done) if done % options.evaluate_every == 0 or done == last else {}
    return RoundRecord(
        round=done, participants=participants, seconds=time.perf_counter() - began, **measured, **means,
    )  # fmt: skip


def _measured(run: Training, done: int) -> dict[str, Any]:
    """Return what a record says of the model after so many rounds, which are the last that were played."""
    accuracy, loss = accuracy_of(run.model, run.weights, run.test)
    claimed = claimed_after(run.settings, run.defense, run.model.layout, done)
    return {"accuracy": accuracy, "loss": loss, "claimed_epsilon": claimed}


def _resumed(run: Training, folder: TrainFolder, secret: bool) -> tuple[list[RoundRecord], list[int]]:
    saved = folder.load(run.settings, run.sources, secret)
    if saved is None:
        return [], []
    weights, memory, records, kept, run.key = saved
    try:
        run.restore(weights, memory)
    except Damaged as problem:
        raise folder.damaged(problem) from problem
    return records, kept


def _keep(run: Training, folder: TrainFolder, options: TrainOptions, done: int) -> list[int]:
    """The round, if its model is kept."""
    if done not in options.keep:
        return []
    folder.keep(done, run.model.state(run.weights), run.memory.server)
    if variates := run.variates_after(done):
        folder.keep_variates(done, variates, run.model_name)
    return [done]


def _document(
    run: Training, records: list[RoundRecord], stopped: str | None, kept: tuple[dict[int, str], dict[int, str]],
    seconds: float, bayesian: list[dict[str, Any]],
) -> TrainDocument:  # fmt: skip
    statements = statements_after(run.settings, run.defense, run.model.layout, len(records), run.holdings)
    secret = isinstance(run.key, str)
    if not secret:
        statements = repeatable(statements)
    return TrainDocument(
        environment=environment(run.settings.device),
        settings=run.settings.model_dump(mode="json") | {"model": run.model_name},
        units=run.defense.units(), parameters=run.model.layout.total, train_examples=len(run.train.labels),
        test_examples=len(run.test.labels), overlap=run.overlap,
        sources=run.sources, holders=run.holdings.holders,
        copies=run.holdings.copies, secret=secret, rounds=records, stopped=stopped,
        accuracy=records[-1].accuracy if records else None,
        privacy=statements,
        weights=kept[0], server_state=kept[1], bayesian=bayesian, seconds=seconds,
    )  # fmt: skip


# How many examples clients hold where nobody said so: one local pass, or as many as the data can give.


def fitted(settings: TrainSettings, data_root: Path) -> TrainSettings:
    """The settings with fewer examples per client, in whole batches, where the split cannot give those of one pass.

    The local steps of a round then pass over them several times.
    """
    if settings.examples is not None:
        return settings
    train, batch = load_dataset(settings.dataset, data_root, "train"), settings.batch_size
    most = most_examples(train.labels, train.clients, settings.clients, settings.split)
    held = most - most % (2 * batch if settings.split == "shards" else batch)
    if settings.client_examples <= most or held == 0:
        return settings
    return settings.model_copy(update={"examples": held})
