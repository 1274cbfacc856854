"""The clients' side of a training run: what some of them begin a round with, and what the server has of them then."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from harness.base.devices import compute_on
from harness.datasets import Dataset, load_dataset
from harness.datasets.partition import NATURAL, natural_clients, split_clients
from harness.defenses import DEFENSES, RoundContext
from harness.federation.client_round import send, train_locally
from harness.federation.examples import Batches
from harness.federation.recorders import RoundRecorder
from harness.federation.server_round import receive
from harness.federation.variates import RoundVariates
from harness.models import RowModel
from harness.models.batch_norm import Buffers
from harness.own_sources import own_sources
from harness.training.local import batch_gradients
from harness.training.running import ClientsStatistics, require_whole_batches
from harness.training.settings import TrainSettings
from harness.version import __version__


@dataclass(frozen=True)
class Chunk:
    """Some clients that are trained together, and what they begin the round with.

    Attributes:
        context: of the round, with the numbers and keys of N clients, and what they remember.
        batches: of their local steps.
        weights: (P,), of the global model.
        running: its running statistics, by name.
        variates: SCAFFOLD's, with a row for each client.
        recorders: shown this chunk alone.
    """

    context: RoundContext
    batches: Batches
    weights: Tensor
    running: Buffers
    variates: RoundVariates | None
    recorders: Sequence[RoundRecorder]


@dataclass(frozen=True)
class TrainedChunk:
    """What the server has of a chunk's clients, and what is kept for them.

    Attributes:
        context: with what N clients now remember, and what they sent beside the message.
        received: (N, P), what the server makes of their messages.
        mean_step: (N, P), mean of each one's local steps; None without control variates.
        running: each one's running statistics (N, ...), by name.
        recorders: with what they saw.
    """

    context: RoundContext
    received: Tensor
    mean_step: Tensor | None
    running: Buffers
    recorders: Sequence[RoundRecorder]


TrainsChunks = Callable[[Iterable[Chunk]], Iterator[TrainedChunk]]
"""Trains chunks, here or elsewhere: they come back in their order, and are drawn when somebody has time for them."""


class Clients:
    """All clients, as far as they stay the same from round to round: their data, the network, the defense.

    Attributes:
        train: the training examples. data: (clients, n), positions of each client's.
        sources: digests of what they are made from, as it is read now; somebody may change it while the run lasts.

    Raises:
        UsageError: impossible settings or data.
    """

    def __init__(self, settings: TrainSettings, data_root: Path) -> None:
        self.settings, self.defense = settings, settings.build_defense()
        device = compute_on(settings.device)
        self.sources = own_sources(settings.model or "", settings.dataset, (DEFENSES, settings.defense))
        self.sources["harness"] = __version__
        train = load_dataset(settings.dataset, data_root, "train")
        self.model_name = settings.model or ("mlp2" if train.columns else "cnn")
        self.model = RowModel(self.model_name, train.image_shape, train.num_classes, train.images)
        self.model.to(device, torch.float32)
        self.data = _positions(settings, train).to(device)
        require_whole_batches(self.model, settings.batch_size, settings.batch_sampling)
        self.train = on_device(train, device)

    def learn(self, chunk: Chunk) -> TrainedChunk:
        """The round of a chunk's clients, as far as the server's sum."""
        settings, context, recorders = self.settings, chunk.context, chunk.recorders
        count, data = len(context.clients), self.data[list(context.clients)]
        gradients = batch_gradients(self.model, self.train, data, chunk.batches, settings.batch_size)
        running = ClientsStatistics(self.model, chunk.running, count)
        weights = chunk.weights.expand(count, -1).contiguous()
        made = train_locally(
            running.followed(gradients), weights, self.defense, context, settings.local_steps,
            variates=chunk.variates, momentum=settings.local_momentum, precision=weights.dtype, recorders=recorders,
        )  # fmt: skip
        message = send(made.moved, self.defense, context, recorders)
        received = receive(message, self.defense, context, recorders)
        mean_step = made.mean_step if settings.has_variates else None
        return TrainedChunk(context, received, mean_step, running.buffers, recorders)


def on_device(dataset: Dataset, device: torch.device) -> Dataset:
    """The same dataset, where it is computed with."""
    return replace(dataset, images=dataset.images.to(device), labels=dataset.labels.to(device))


def _positions(settings: TrainSettings, train: Dataset) -> Tensor:
    """Positions (N, n) of each client's examples."""
    clients, examples, seed = settings.clients, settings.client_examples, settings.seed
    if settings.split == NATURAL:
        return natural_clients(train.clients, clients, examples, seed)
    return split_clients(train.labels, clients, examples, settings.split, settings.level, seed)
