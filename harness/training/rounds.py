"""The rounds of one training run: who takes part, local training in chunks, and what the server makes of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.control_variates import RoundVariates
from harness.datasets import Dataset, load_dataset
from harness.datasets.partition import NATURAL, most_copies, natural_clients, split_clients
from harness.defenses import RoundContext, State
from harness.errors import UsageError
from harness.models import RowModel
from harness.own_sources import own_sources
from harness.training.local import LocalRound, train_locally
from harness.training.memory import Memory
from harness.training.sampling import sample_batches, sample_clients
from harness.training.settings import TrainSettings
from harness.training.spending import Holdings
from harness.training.summing import RoundSum
from harness.training.variates import ControlVariates


class Training:
    """One run: its data, its model and its state."""

    def __init__(self, settings: TrainSettings, data_root: Path) -> None:
        self.settings, self.defense = settings, settings.build_defense()
        device = torch.device(settings.device)
        # As they are read now: what somebody changes while the run lasts is not what it was made from.
        self.sources = own_sources(settings.model or "", settings.dataset)
        train = load_dataset(settings.dataset, data_root, "train")
        self.test = _on(load_dataset(settings.dataset, data_root, "test"), device)
        self.model_name = settings.model or ("mlp2" if train.columns else "cnn")
        self.model = RowModel(self.model_name, train.image_shape, train.num_classes, train.images)
        self.model.to(device, torch.float32)
        data = _clients_data(settings, train)
        self.overlap = data.numel() / len(data.unique())
        self.holdings = Holdings(int(data.flatten().bincount().max()), most_copies(data), self.model.uncovered)
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
        if self.overlap == 1 or not self.defense.acts_at("sum_securely"):
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
        messages = RoundSum(self.defense, self.weights)
        sent: dict[str, Tensor] = {}
        measured: dict[str, list[Tensor]] = {"gradient_norm": [], "update_norm": [], "noise": []}
        for part in _chunks(clients, chunk):
            context = self._context(round_index, part, self.memory.read(part))
            made = self._learn_locally(round_index, part, context)
            self.memory.write(part, context.client)
            messages.add(made.message, context.local)
            for name, values in context.sent.items():
                sent[name] = sum(values.unbind(0), sent.get(name, torch.zeros_like(values[0])))
            for name, entries in measured.items():
                entries.append(getattr(made, name))
        if settings.algorithm.startswith("scaffold"):
            self.variates.finish_round()
        context = self._context(round_index, clients or [0], {})
        context.sent.update(sent)
        applied = self.defense.aggregate(messages.total(context), context)
        self.velocity = settings.server_momentum * self.velocity + applied
        self.weights = (self.weights.double() + settings.server_learning_rate * self.velocity).float()
        means = {name: float(torch.cat(entries).mean()) for name, entries in measured.items() if entries}
        if entries := measured["noise"]:
            means["noise"] = float(torch.cat(entries).max())
        return means, len(clients)

    def state(self) -> dict[str, Any]:
        """What the defense and the algorithm remember, for a checkpoint."""
        return {
            "defense": self.memory.tensors(), "algorithm": self.variates.memory.tensors(),
            "velocity": self.velocity.cpu(),
        }  # fmt: skip

    def variates_after(self, done: int) -> RoundVariates | None:
        """The control variates that the round after ``done`` begins with; None without SCAFFOLD."""
        if not self.settings.algorithm.startswith("scaffold"):
            return None
        everybody = self.variates.of(list(range(self.settings.clients)))
        return RoundVariates(self.variates.server, everybody, moving=done >= self.settings.warm_up_rounds)

    def restore(self, weights: Tensor, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.weights = weights.to(self.weights.device)
        self.velocity = state["velocity"].to(self.weights.device)
        self.memory.restore(state["defense"])
        self.variates.memory.restore(state["algorithm"])

    def _learn_locally(self, round_index: int, part: list[int], context: RoundContext) -> LocalRound:
        settings, batches = self.settings, sample_batches(self.settings, round_index, part)
        where = (self.model, self.weights, self.train, self.data[part], batches, self.defense, context)
        if not settings.algorithm.startswith("scaffold"):
            return train_locally(*where, momentum=settings.local_momentum)
        if round_index < settings.warm_up_rounds:
            made = train_locally(*where, moving=False)
        else:
            made = train_locally(*where, correction=self.variates.correction(part))
        self.variates.learn(part, made.mean_step)
        return made

    def _context(self, round_index: int, clients: list[int], state: State) -> RoundContext:
        settings = self.settings
        return RoundContext(
            round_index, 0, settings.learning_rate, settings.cohort(), self.model.layout,
            tuple((settings.seed, client) for client in clients), client=state, server=self.memory.server,
        )  # fmt: skip


def _clients_data(settings: TrainSettings, train: Dataset) -> Tensor:
    """Positions (N, n) of each client's examples."""
    clients, examples, seed = settings.clients, settings.client_examples, settings.seed
    if settings.split == NATURAL:
        return natural_clients(train.clients, clients, examples, seed)
    return split_clients(train.labels, clients, examples, settings.split, settings.level, seed)


def _chunks(clients: list[int], size: int) -> list[list[int]]:
    """Clients in chunks of a size, none of a single one beside others: one row alone takes other CPU kernels."""
    parts = [clients[first : first + size] for first in range(0, len(clients), size)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [parts[-2] + parts[-1]]
    return parts


def _on(dataset: Dataset, device: torch.device) -> Dataset:
    return replace(dataset, images=dataset.images.to(device), labels=dataset.labels.to(device))
