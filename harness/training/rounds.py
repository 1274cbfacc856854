"""The rounds of one training run: who takes part, local training in chunks, and what the server makes of it."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from harness.datasets import Dataset, load_dataset
from harness.datasets.partition import split_clients
from harness.defenses import RoundContext, State
from harness.models import RowModel
from harness.training.local import train_locally
from harness.training.memory import Memory
from harness.training.sampling import sample_batches, sample_clients
from harness.training.settings import TrainSettings


class Training:
    """One run: its data, its model and its state."""

    def __init__(self, settings: TrainSettings, data_root: Path) -> None:
        self.settings, self.defense = settings, settings.build_defense()
        device = torch.device(settings.device)
        train = load_dataset(settings.dataset, data_root, "train")
        self.test = _on(load_dataset(settings.dataset, data_root, "test"), device)
        self.model_name = settings.model or ("mlp2" if train.columns else "cnn")
        self.model = RowModel(self.model_name, train.image_shape, train.num_classes)
        self.model.to(device, torch.float32)
        data = split_clients(
            train.labels, settings.clients, settings.client_examples, settings.split, settings.level, settings.seed
        )
        self.overlap = data.numel() / len(data.unique())
        self.train, self.data = _on(train, device), data.to(device)
        self.weights = self.model.initial_weights([(settings.seed, "global")])[0].to(device)
        self.memory = Memory(settings.clients)
        self.tensors = len(self.model.layout.sizes)

    def play_round(self, round_index: int, chunk: int) -> tuple[dict[str, float], int]:
        """One round; returns the means of what clients measured, and how many took part."""
        settings, clients = self.settings, sample_clients(self.settings, round_index)
        total = torch.zeros_like(self.weights, dtype=torch.float64)
        sent: dict[str, Tensor] = {}
        measured: dict[str, list[Tensor]] = {"gradient_norm": [], "update_norm": [], "noise": []}
        for part in _chunks(clients, chunk):
            context = self._context(round_index, part, self.memory.read(part))
            batches = sample_batches(settings, round_index, part)
            made = train_locally(self.model, self.weights, self.train, self.data[part], batches, self.defense, context)
            self.memory.write(part, context.client)
            # One client after the other, so that the sum does not depend on the chunks.
            for message in made.message:
                total += message
            for name, values in context.sent.items():
                sent[name] = sum(values.unbind(0), sent.get(name, torch.zeros_like(values[0])))
            for name, entries in measured.items():
                entries.append(getattr(made, name))
        context = self._context(round_index, clients or [0], {})
        context.sent.update(sent)
        applied = self.defense.aggregate(total, context)
        self.weights = (self.weights.double() + settings.server_learning_rate * applied).float()
        means = {name: float(torch.cat(entries).mean()) for name, entries in measured.items() if entries}
        if entries := measured["noise"]:
            means["noise"] = float(torch.cat(entries).max())
        return means, len(clients)

    def _context(self, round_index: int, clients: list[int], state: State) -> RoundContext:
        settings = self.settings
        return RoundContext(
            round_index, 0, settings.learning_rate, settings.cohort(), self.model.layout,
            tuple((settings.seed, client) for client in clients), client=state, server=self.memory.server,
        )  # fmt: skip


def _chunks(clients: list[int], size: int) -> list[list[int]]:
    """Clients in chunks of a size, none of a single one beside others: one row alone takes other CPU kernels."""
    parts = [clients[first : first + size] for first in range(0, len(clients), size)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [parts[-2] + parts[-1]]
    return parts


def _on(dataset: Dataset, device: torch.device) -> Dataset:
    return replace(dataset, images=dataset.images.to(device), labels=dataset.labels.to(device))
