"""Clients of somebody's federation: plain torch on the 8x8 digits, with a clip and noise of their own making."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.capture import captured
from harness.models.networks import build_module
from harness.testing import digits

SHAPE, CLASSES, RATE = (1, 8, 8), 10, 0.05


@dataclass(frozen=True)
class Client:
    """How a client really trains: Fed-CDP's step on the sum of clipped gradients, and what may be wrong with it."""

    clip: float = float("inf")
    sigma: float = 0.0
    batch: int = 1
    steps: int = 1
    per_layer: bool = False
    noise_on_last_layer_only: bool = False
    noise_seed: int | None = None

    def update(self, network: nn.Module, images: Tensor, labels: Tensor, number: int) -> None:
        random = torch.Generator().manual_seed(1000 + number if self.noise_seed is None else self.noise_seed)
        for step in range(self.steps):
            part = slice(step * self.batch, (step + 1) * self.batch)
            self._step(network, images[part], labels[part], random)

    def _step(self, network: nn.Module, images: Tensor, labels: Tensor, random: torch.Generator) -> None:
        weights = list(network.parameters())
        total = [torch.zeros_like(one) for one in weights]
        for image, label in zip(images, labels, strict=True):
            loss = nn.functional.cross_entropy(network(image[None]), label[None])
            made = torch.autograd.grad(loss, weights)
            whole = torch.cat([one.flatten() for one in made]).norm()
            for sum_, one in zip(total, made, strict=True):
                norm = one.norm() if self.per_layer else whole
                sum_ += one * min(1.0, self.clip / float(norm))
        last = len(weights) - 2
        with torch.no_grad():
            for number, (one, sum_) in enumerate(zip(weights, total, strict=True)):
                noisy = self.sigma and (number >= last or not self.noise_on_last_layer_only)
                noise = self.sigma * self.clip * torch.randn(one.shape, generator=random) if noisy else 0.0
                one -= RATE * (sum_ + noise) / len(images)


Federation = Callable[..., list[Path]]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Captures so many clients of one round, and returns their folders.

    ``how`` are the fields of Client; what is declared may be something else.
    """

    def train(count: int, truth: bool = True, declared: Any = None, **how: Any) -> list[Path]:
        client = Client(**how)
        network = build_module("mlp", SHAPE, CLASSES, seed=0)
        start = {name: value.clone() for name, value in network.state_dict().items()}
        images, labels = digits(count, client.batch * client.steps)
        folders = []
        for number in range(count):
            network.load_state_dict(start)
            facts: dict[str, Any] = {
                "model": "mlp", "image_shape": SHAPE, "classes": CLASSES, "learning_rate": RATE,
                "batch_size": client.batch, "local_steps": client.steps, "defense": declared,
            }  # fmt: skip
            folders.append(tmp_path / "captures" / str(number))
            with captured(network, folders[-1], **facts) as capture:
                client.update(network, images[number], labels[number], number)
                if truth:
                    capture.batch(images[number], labels[number])
        return folders

    return train
