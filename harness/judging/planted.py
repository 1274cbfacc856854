"""Clients of a federation in plain torch, with a clip and noise of their own making, right or wrong on purpose.

They share no code with the defenses, so that what the checks say of them says something of the checks. Their noise
therefore comes from torch's generator: its seeds are few and distinct, so that its 32 bits repeat no noise.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Client:
    """How a client really trains: by default as without a defense.

    Attributes:
        clip: of the norm of an example's gradient, or of every tensor of it (``per_layer``); ``of_update`` of the whole
            round's mean gradient instead.
        deviation: of the noise on the sum of a step's clipped gradients, or on the clipped mean gradient of the round.
        batch, steps: B examples in each of L local steps; the last one has what is left, where that is less.
        epochs: passes over the examples, of so many steps each.
        momentum, weight_decay, adam: of local training.
        expected: what a step's sum is divided by, where that is not the batch's size (Poisson batches).
        noisy: the tensors that get noise.
        draws: when a generator begins anew: for every client and round as it should be (``right``), with the same
            numbers for all clients (``shared``), for every tensor, or for every step.
        noise_before_clip: whether noise is added to each example's gradient and clipped with it.
        law: of the noise, all of the same deviation.
        on_buffers: whether clip and noise of the update are on running statistics too.
        rounded: the step of a grid that the mean gradient is rounded to at random, which looks like noise; 0 for none.
    """

    clip: float = float("inf")
    deviation: float = 0.0
    batch: int = 1
    steps: int = 1
    expected: int | None = None
    per_layer: bool = False
    of_update: bool = False
    noisy: Literal["all", "last", "first", "weights"] = "all"
    draws: Literal["right", "shared", "each tensor", "each step"] = "right"
    noise_before_clip: bool = False
    law: Literal["normal", "laplace", "uniform", "signs"] = "normal"
    rounded: float = 0.0
    epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    adam: bool = False
    on_buffers: bool = False

    def train(self, network: nn.Module, images: Tensor, labels: Tensor, rate: float, number: int) -> None:
        """Trains on images (n, C, H, W) with labels (n,); ``number`` tells clients and rounds apart."""
        seed = 1000 + (0 if self.draws == "shared" else number)
        random, start = torch.Generator().manual_seed(seed), [one.detach().clone() for one in self._sent(network)]
        optimizer = self._optimizer(network, rate)
        for step in range(self.steps * self.epochs):
            if self.draws == "each step":
                random.manual_seed(seed)
            first = step % self.steps * self.batch
            part = slice(first, first + self.batch)
            moved = self._step(network, images[part], labels[part], random)
            for weight, one in zip(network.parameters(), moved, strict=True):
                weight.grad = one
            optimizer.step()
        if self.of_update or self.rounded:
            self._send(network, start, rate * self.steps * self.epochs, random)

    def _optimizer(self, network: nn.Module, rate: float) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.Adam(network.parameters(), lr=rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(network.parameters(), rate, self.momentum, weight_decay=self.weight_decay)

    def _sent(self, network: nn.Module) -> list[Tensor]:
        """What of a network a defense of the update is on."""
        buffers = [one for one in network.buffers() if one.is_floating_point()] if self.on_buffers else []
        return [*network.parameters(), *buffers]

    def _step(self, network: nn.Module, images: Tensor, labels: Tensor, random: torch.Generator) -> list[Tensor]:
        weights = list(network.parameters())
        if self.clip == float("inf") or self.of_update:
            # A batch as it is: BatchNorm may mix its examples.
            return list(torch.autograd.grad(nn.functional.cross_entropy(network(images), labels), weights))
        total = [torch.zeros_like(one) for one in weights]
        for image, label in zip(images, labels, strict=True):
            made = list(torch.autograd.grad(nn.functional.cross_entropy(network(image[None]), label[None]), weights))
            if self.noise_before_clip:
                made = self._noised(made, random)
            total = [sum_ + one for sum_, one in zip(total, self._clipped(made), strict=True)]
        total = total if self.noise_before_clip else self._noised(total, random)
        return [one / (self.expected or len(images)) for one in total]

    def _clipped(self, made: list[Tensor]) -> list[Tensor]:
        whole = torch.cat([one.flatten() for one in made]).norm()
        norms = [one.norm() if self.per_layer else whole for one in made]
        return [one * min(1.0, self.clip / float(norm)) for one, norm in zip(made, norms, strict=True)]

    def _noised(self, tensors: list[Tensor], random: torch.Generator) -> list[Tensor]:
        last, noisy = len(tensors) - 2, []
        for number, one in enumerate(tensors):
            if self.draws == "each tensor":
                random.manual_seed(1)
            drawn = self.deviation * self._unit(one.shape, random)
            chosen = {"all": True, "last": number >= last, "first": number < 2, "weights": one.dim() > 1}[self.noisy]
            noisy.append(one + drawn if chosen and self.deviation else one)
        return noisy

    def _unit(self, shape: torch.Size, random: torch.Generator) -> Tensor:
        """Noise of deviation 1."""
        if self.law == "normal":
            return torch.randn(shape, generator=random)
        even = 2 * torch.rand(shape, generator=random) - 1
        if self.law == "laplace":
            return -even.sign() * torch.log1p(-even.abs()) / 2**0.5
        return 3**0.5 * even if self.law == "uniform" else even.sign()

    def _send(self, network: nn.Module, start: list[Tensor], rate: float, random: torch.Generator) -> None:
        """Puts what is sent into the network: the start less ``rate`` times the round's defended mean gradient."""
        with torch.no_grad():
            mean = [(old - one) / rate for old, one in zip(start, self._sent(network), strict=True)]
            if self.of_update:
                mean = self._noised(self._clipped(mean), random)
            if self.rounded:
                step = self.rounded
                mean = [(one / step + torch.rand(one.shape, generator=random)).floor() * step for one in mean]
            for weight, old, one in zip(self._sent(network), start, mean, strict=True):
                weight.copy_(old - rate * one)


def with_batch_norm(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A small network with BatchNorm, in evaluation mode."""
    size = image_shape[0] * image_shape[1] * image_shape[2]
    layers = nn.Linear(size, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, classes)
    return nn.Sequential(nn.Flatten(), *layers).eval()
