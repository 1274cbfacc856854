"""The rounds of one training run: who takes part, local training in chunks, and what the server makes of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.datasets import Dataset, load_dataset
from harness.datasets.partition import NATURAL, most_copies, natural_clients, split_clients
from harness.defenses import DEFENSES, RoundContext, State
from harness.errors import UsageError
from harness.federation.client_round import send, train_locally
from harness.federation.examples import Batches
from harness.federation.memory import Memory
from harness.federation.recorders import Recorder
from harness.federation.server_round import ServerRound, receive
from harness.federation.variates import REMEMBERED, ControlVariates, RoundVariates
from harness.models import RowModel
from harness.models.batch_norm import UNCOVERED
from harness.own_sources import own_sources
from harness.storage.stored import Damaged
from harness.training.local import RoundMeans, batch_gradients
from harness.training.running import RoundStatistics, require_whole_batches, restore_running, running_of
from harness.training.sampling import sample_batches, sample_clients
from harness.training.settings import TrainSettings
from harness.training.spending import Holdings
from harness.version import __version__


class Training:
    """One run: its data, its model and its state. ``recorders`` are shown every round."""

    recorders: Sequence[Recorder] = ()

    def __init__(self, settings: TrainSettings, data_root: Path) -> None:
        self.settings, self.defense = settings, settings.build_defense()
        device = torch.device(settings.device)
        # As they are read now: what somebody changes while the run lasts is not what it was made from.
        self.sources = own_sources(settings.model or "", settings.dataset, (DEFENSES, settings.defense))
        self.sources["harness"] = __version__
        train = load_dataset(settings.dataset, data_root, "train")
        self.test = _on(load_dataset(settings.dataset, data_root, "test"), device)
        self.model_name = settings.model or ("mlp2" if train.columns else "cnn")
        self.model = RowModel(self.model_name, train.image_shape, train.num_classes, train.images)
        self.model.to(device, torch.float32)
        data = _clients_data(settings, train)
        self.overlap = data.numel() / len(data.unique())
        require_whole_batches(self.model, settings.batch_size, settings.batch_sampling)
        travels = UNCOVERED if self.model.normalised else None
        self.holdings = Holdings(
            int(data.flatten().bincount().max()), most_copies(data), self.model.uncovered or train.uncovered or travels
        )
        self._require_disjoint_clients()
        self.train, self.data = _on(train, device), data.to(device)
        self.weights = self.model.initial_weights([(settings.seed, "global")])[0].to(device)
        self.velocity = torch.zeros_like(self.weights, dtype=torch.float64)
        self.memory = Memory(settings.clients)
        self.variates = ControlVariates(Memory(settings.clients), self.weights)

    def _require_disjoint_clients(self) -> None:
        """Raises:
        UsageError: clients share examples under a defense that promises something for their secure sum.
        """
        if self.overlap == 1 or not self.defense.sums_securely:
            return
        promised = self.defense.statements(self.settings.facts(self.model.layout, 1))
        if any(one.guarantee != "none" for one in promised):
            raise UsageError(
                f"clients share examples ({self.overlap:.1f} hold each one), which no noise of a secure sum is made "
                "for; lower --clients or --examples, or take a larger dataset"
            )

    def play_round(self, round_index: int, chunk: int) -> tuple[dict[str, float], int]:
        """One round; returns the means of what clients measured, and how many took part."""
        settings, clients = self.settings, sample_clients(self.settings, round_index)
        server = ServerRound(self.defense, self.model.layout.total, self.weights.device)
        means, running = RoundMeans(), RoundStatistics(self.model)
        batches = sample_batches(settings, round_index, clients)
        for rows in _chunks(len(clients), chunk):
            part = clients[rows]
            context = self._context(round_index, part, self.memory.read(part))
            received = self._learn_locally(part, batches.of(rows), context, [means, *self.recorders], running)
            self.memory.write(part, context.client)
            server.add(received, context)
        if settings.has_variates:
            self.variates.finish_round()
        running.finish()
        applied = server.aggregate(self._context(round_index, clients or [0], {}))
        self.velocity = settings.server_momentum * self.velocity + applied
        self.weights = (self.weights.double() + settings.server_learning_rate * self.velocity).float()
        return means.take(), len(clients)

    def state(self) -> dict[str, Any]:
        """What the defense and the algorithm remember, for a checkpoint."""
        return {
            "defense": self.memory.tensors(), "algorithm": self.variates.memory.tensors(),
            "velocity": self.velocity.cpu(), "running": running_of(self.model),
        }  # fmt: skip

    def variates_after(self, done: int) -> RoundVariates | None:
        """The control variates that the round after ``done`` begins with; None without SCAFFOLD."""
        if not self.settings.has_variates:
            return None
        return self.variates.beginning(list(range(self.settings.clients)), done >= self.settings.warm_up_rounds)

    def restore(self, weights: Tensor, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Raises:
            Damaged: it does not fit this run's model, clients, defense or algorithm.
        """
        for name, found, own in (("weights", weights, self.weights), ("velocity", state["velocity"], self.velocity)):
            if (found.shape, found.dtype) != (own.shape, own.dtype):
                raise Damaged(f"is damaged: {name!r} has shape {tuple(found.shape)} of {found.dtype}")
        parameters, algorithm = len(self.weights), REMEMBERED if self.settings.has_variates else {}
        problem = self.memory.problem(
            state["defense"], self.defense.server_remembers(), self.defense.clients_remember(), parameters
        ) or self.variates.memory.problem(state["algorithm"], algorithm, algorithm, parameters)
        if problem:
            raise Damaged(problem)
        restore_running(self.model, state["running"])
        self.weights, self.velocity = weights.to(self.weights.device), state["velocity"].to(self.weights.device)
        self.memory.restore(state["defense"], self.weights)
        self.variates.memory.restore(state["algorithm"], self.weights)

    def _learn_locally(
        self, part: list[int], batches: Batches, context: RoundContext, recorders: Sequence[Recorder],
        running: RoundStatistics,
    ) -> Tensor:  # fmt: skip
        """What the server has (N, P) of some clients' training."""
        settings = self.settings
        gradients = partial(batch_gradients, self.model, self.train, self.data[part], batches, settings.batch_size)
        gradients = running.followed(gradients, len(part))
        weights = self.weights.expand(len(part), -1).contiguous()
        variates = None
        if settings.has_variates:
            variates = self.variates.beginning(part, moving=context.round >= settings.warm_up_rounds)
        made = train_locally(
            gradients, weights, self.defense, context, settings.local_steps, variates=variates,
            momentum=settings.local_momentum, precision=weights.dtype, recorders=recorders,
        )  # fmt: skip
        if settings.has_variates:
            self.variates.learn(part, made.mean_step)
        message = send(made.moved, self.defense, context, recorders)
        return receive(message, self.defense, context, recorders)

    def _context(self, round_index: int, clients: list[int], state: State) -> RoundContext:
        settings = self.settings
        return RoundContext(
            round_index, 0, settings.learning_rate, settings.cohort(), self.model.layout,
            tuple((settings.seed, client) for client in clients), client=state, server=self.memory.server,
            clients=tuple(clients),
        )  # fmt: skip


def _clients_data(settings: TrainSettings, train: Dataset) -> Tensor:
    """Positions (N, n) of each client's examples."""
    clients, examples, seed = settings.clients, settings.client_examples, settings.seed
    if settings.split == NATURAL:
        return natural_clients(train.clients, clients, examples, seed)
    return split_clients(train.labels, clients, examples, settings.split, settings.level, seed)


def _chunks(clients: int, size: int) -> list[slice]:
    """Rows in chunks of a size, none of a single one beside others: one row alone takes other CPU kernels."""
    starts = list(range(0, clients, size))
    if len(starts) > 1 and clients - starts[-1] == 1:
        starts.pop()
    return [slice(first, end) for first, end in pairwise([*starts, clients])]


def _on(dataset: Dataset, device: torch.device) -> Dataset:
    return replace(dataset, images=dataset.images.to(device), labels=dataset.labels.to(device))
