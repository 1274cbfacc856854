"""The clients' side of a training run: what some of them begin a round with, and what the server has of them then."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from harness.base.devices import compute_on
from harness.base.version import __version__
from harness.base.words import require_texts_for
from harness.datasets import Dataset, load_dataset
from harness.datasets.partition import NATURAL, natural_clients, split_clients
from harness.federation.client_round import send, train_locally
from harness.federation.context import RoundContext
from harness.federation.examples import Batches, ExampleGradients, LocalStep, NetworkBatch, NetworkGradients
from harness.federation.memory import RoundVariates
from harness.federation.recorders import RoundRecorder
from harness.federation.server_round import receive
from harness.federation.taps import Tap
from harness.models import RowModel, words_of
from harness.models.batch_norm import Buffers, JointGradients, RunningStatistics, refusal
from harness.own_sources import own_sources
from harness.results.files import Damaged
from harness.training.settings import TrainSettings

# What clients of a training run compute their steps from, and what is measured of them on the way.


def batch_gradients(
    model: RowModel, dataset: Dataset, data: Tensor, batches: Batches, expected: int
) -> NetworkGradients:
    """Example gradients of N clients in their local steps.

    Args:
        model: the network.
        dataset: the training data.
        data: (N, n), positions of each client's examples.
        batches: (N, L, B) places in ``data``.
        expected: the batch size that a mean divides by.
    """

    def batch(step: int, weights: Tensor) -> NetworkBatch:
        chosen = data.gather(1, batches.places[:, step].to(data.device))
        images, labels = _examples(dataset.images, chosen).to(weights), _examples(dataset.labels, chosen)
        present = None if batches.present is None else batches.present[:, step].to(weights)
        return NetworkBatch(model, weights, images, labels, present)

    def gradients(of: NetworkBatch) -> ExampleGradients:
        return model.example_gradients(of.weights, of.inputs, of.labels, of.present, expected)

    return NetworkGradients(batch, gradients)


def _examples(values: Tensor, places: Tensor) -> Tensor:
    """Entries of ``values`` (D, ...) at places (N, B): (N, B, ...)."""
    # The same as values[places], several times faster.
    return values.index_select(0, places.flatten()).unflatten(0, places.shape)


class RoundMeans(RoundRecorder):
    """Means over a round's clients, and the largest noise.

    ``gradient_norm``: mean L2 norm of the first step's per-example gradients, before the defense, where examples have
    gradients of their own; ``update_norm``: of
    raw updates; ``noise``: largest standard deviation of the noise on a step, zero without.
    """

    def __init__(self) -> None:
        self._measured: dict[str, list[Tensor]] = {"gradient_norm": [], "update_norm": [], "noise": []}

    def for_chunk(self) -> "RoundMeans":
        return RoundMeans()

    def add(self, chunk: "RoundMeans") -> None:
        for name, entries in chunk._measured.items():
            self._measured[name] += entries

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        if context.local_step == 0 and not isinstance(examples, JointGradients):
            norms = examples.norms().square().sum(-1).sqrt()
            present = examples.present
            self._measured["gradient_norm"].append((norms * present).sum(1) / present.sum(1).clamp(min=1))
        noise = torch.as_tensor(0.0 if made.noise is None else made.noise).to(made.step)
        self._measured["noise"].append(noise.expand(len(made.step)))

    def read(self, tap: Tap, values: Tensor) -> None:
        if tap is Tap.UPDATE:
            self._measured["update_norm"].append(values.norm(dim=1))

    def take(self) -> dict[str, float]:
        """The figures by name; none of a round without clients."""
        known = {name: torch.cat(entries) for name, entries in self._measured.items() if entries}
        return {name: float(values.max() if name == "noise" else values.mean()) for name, values in known.items()}


# Running statistics in training: every client's follow its own batches, and FedAvg takes their mean.


def require_whole_batches(model: RowModel, batch: int, sampling: str, accumulate: int) -> None:
    """Raises:
    UsageError: batches without a variance, of several sizes, or several in a step, under a network that normalises
        them as a whole.
    """
    if model.normalised:
        model.require_batch(batch)
        if accumulate > 1:
            raise refusal(model.name, "a step takes several")
        if sampling == "poisson":
            raise refusal(model.name, "Poisson batches differ in size")


def running_of(model: RowModel) -> Buffers:
    """The global model's running statistics that training moves, as they stand in its state."""
    return {name: values[0].cpu() for name, values in RunningStatistics(model.normalised, 1).buffers.items()}


def restore_running(model: RowModel, saved: Mapping[str, Tensor]) -> None:
    """Takes them over from a checkpoint. Raises Damaged."""
    own = running_of(model)
    if {name: values.shape for name, values in saved.items()} != {name: values.shape for name, values in own.items()}:
        raise Damaged("is damaged: 'running' is not of this network")
    _take(model, saved)


class ClientsStatistics:
    """Those of N clients, which begin with the global model's and follow every step's batches; none without BatchNorm.

    Attributes:
        buffers: each tensor (N, ...), by name.
    """

    def __init__(self, model: RowModel, beginning: Mapping[str, Tensor], clients: int) -> None:
        self._running = RunningStatistics(model.normalised, clients)
        self._running.buffers = {
            name: beginning[name].to(values.device).expand_as(values).clone()
            for name, values in self._running.buffers.items()
        }

    @property
    def buffers(self) -> Buffers:
        return self._running.buffers

    def followed(self, gradients: NetworkGradients) -> NetworkGradients:
        """Return the gradients of these clients, whose statistics move with every step."""
        if not self.buffers:
            return gradients

        def followed(batch: NetworkBatch) -> ExampleGradients:
            examples = gradients.gradients(batch)
            assert isinstance(examples, JointGradients)
            self._running.follow(examples.statistics)
            return examples

        return replace(gradients, gradients=followed)


def finish_round(model: RowModel, clients: Sequence[Buffers]) -> None:
    """Puts the mean of all clients' statistics, (N, ...) of each chunk, into the global model; none change nothing."""
    if clients:
        everyone = {name: torch.cat([buffers[name] for buffers in clients]) for name in clients[0]}
        # Of whole numbers, which all clients have counted alike, the mean is the number itself.
        _take(model, {name: values.double().mean(0) for name, values in everyone.items()})


def _take(model: RowModel, running: Mapping[str, Tensor]) -> None:
    if running:
        model.take_buffers(dict(model.plain_module.named_buffers()) | dict(running))


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
    """Numbers that the server has of a chunk's clients, and what is kept for them.

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
        self.sources = own_sources(settings.model or "", settings.dataset, settings.defense)
        self.sources["harness"] = __version__
        train = load_dataset(settings.dataset, data_root, "train", words_of(settings.model))
        self.model_name = settings.model or train.trained_network
        self.model = RowModel(self.model_name, train.image_shape, train.num_classes, train.images)
        require_texts_for(self.model_name, self.model.vocabulary, train.words)
        self.model.to(device, torch.float32)
        self.data = _positions(settings, train).to(device)
        require_whole_batches(
            self.model, settings.batch_size, settings.batch_sampling, settings.local_optimizer.accumulate
        )
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
            variates=chunk.variates, optimizer=settings.local_optimizer, precision=weights.dtype, recorders=recorders,
        )  # fmt: skip
        message = send(made.moved, self.defense, context, recorders)
        received = receive(message, self.defense, context, recorders)
        mean_step = made.mean_step if settings.has_variates else None
        return TrainedChunk(context, received, mean_step, running.buffers, recorders)


def on_device(dataset: Dataset, device: torch.device) -> Dataset:
    """Return the dataset on the device that computes with it."""
    return replace(dataset, images=dataset.images.to(device), labels=dataset.labels.to(device))


def _positions(settings: TrainSettings, train: Dataset) -> Tensor:
    """Positions (N, n) of each client's examples."""
    clients, examples, seed = settings.clients, settings.client_examples, settings.seed
    if settings.split == NATURAL:
        return natural_clients(train.clients, clients, examples, seed)
    return split_clients(train.labels, clients, examples, settings.split, settings.level, seed)
