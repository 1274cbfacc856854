"""Cost of a local iteration under each defense, beside a plain PyTorch loop and beside torch.func's gradients.

Times are medians over repeats in which every method runs once, in a rotating order: what else the machine does then
falls on all of them alike, and ratios hold where milliseconds do not.
"""

import copy
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from harness.base.building import build
from harness.base.progress import counted, progress
from harness.datasets import Dataset, load_dataset
from harness.defenses import DEFENSES, Cohort, Defense, ExampleGradients, RoundContext
from harness.federation.client_round import train_locally
from harness.models import RowModel, words_of

# What a local iteration costs without this harness: plain SGD, and clipped noisy SGD by torch.func's gradients.

CLIP, SIGMA = 4.0, 6.0


def plain_loop(module: nn.Module, images: Tensor, labels: Tensor, learning_rate: float) -> None:
    """One SGD step for each client (K, B, ...), one after the other, with nothing but PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
    for batch, targets in zip(images, labels, strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(module(batch), targets).backward()
        optimizer.step()


def example_gradient_loop(module: nn.Module, images: Tensor, labels: Tensor, learning_rate: float) -> None:
    """Take one step for each client (K, B, ...) under Fed-CDP with the per-example gradients of ``vmap(grad)``: clipped
    per tensor, noise on the sum."""

    def loss(named: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(module, named, (image[None],)), label[None])

    gradients_of = vmap(grad(loss), in_dims=(None, 0, 0))
    parameters = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for batch, targets in zip(images, labels, strict=True):
        for name, gradients in gradients_of(parameters, batch, targets).items():
            norms = gradients.flatten(1).norm(dim=1)
            clipped = torch.tensordot((CLIP / norms.clamp(min=1e-30)).clamp(max=1.0), gradients, dims=1)
            noisy = clipped + SIGMA * CLIP * torch.randn_like(clipped)
            parameters[name].sub_(noisy, alpha=learning_rate / len(targets))


Methods = dict[str, tuple[str, dict[str, Any]]]

METHODS: Methods = {"non-private": ("none", {}), "Fed-CDP": ("fed_cdp", {}), "Fed-αCDP": ("fed_acdp", {})}
LOOP, TORCH_FUNC = "plain loop", "torch.func"
LEARNING_RATE = 0.05
WARM_UP = 2
_EXAMPLES = 2000


def bench_train(
    dataset: str, model: str | None, clients: list[int], batch_size: int, repeats: int, device: str, data_root: Path
) -> dict[str, Any]:
    """One local iteration of K clients by every method, for every K.

    Args:
        repeats: timed iterations at one client; fewer for more clients (see :func:`repeats_for`).

    Returns:
        A document: what was measured, a row per K with milliseconds and ratios, and the checks with their limits.
    """
    bench = IterationBench(dataset, model, batch_size, device, data_root)
    rows = [
        _row(count, bench.medians(METHODS, count, repeats_for(repeats, count))) for count in counted(clients, "row")
    ]
    return {
        "dataset": dataset, "model": bench.model.name, "batch size": batch_size, "threads": torch.get_num_threads(),
        "device": device, "load average": round(os.getloadavg()[0], 1),
        "repeats": {str(count): repeats_for(repeats, count) for count in clients}, "rows": rows,
        "checks": _checks({row["clients"]: row for row in rows}),
    }  # fmt: skip


def repeats_for(repeats: int, clients: int) -> int:
    """Repeats at K clients: about as much work for each K, and never fewer than 45."""
    return max(min(repeats, 45), repeats * 3 // (clients + 2))


class IterationBench:
    """One local iteration of SGD on batches of a dataset, by any method."""

    def __init__(self, dataset: str, model: str | None, batch_size: int, device: str, data_root: Path) -> None:
        self.data, self.batch_size = load_dataset(dataset, data_root, "train", words_of(model)), batch_size
        self.device = torch.device(device)
        name = model or self.data.trained_network
        self.model = RowModel(name, self.data.image_shape, self.data.num_classes)
        self.model.to(self.device, torch.float32)

    def medians(self, methods: Methods, clients: int, repeats: int) -> dict[str, float]:
        """Median seconds of one iteration of all clients, per method and for both loops."""
        images, labels = _batches(self.data, clients, self.batch_size, self.device)
        start = self.model.initial_weights([(0, "global")])[0].to(self.device)
        # A copy: the loops move its weights, and only their own.
        module = copy.deepcopy(self.model.plain(start)).to(self.device)
        steps: dict[str, Callable[[], object]] = {
            name: partial(self._iterate, build(DEFENSES, *defense), start, images, labels)
            for name, defense in methods.items()
        }
        steps[LOOP] = partial(plain_loop, module, images, labels, LEARNING_RATE)
        steps[TORCH_FUNC] = partial(example_gradient_loop, module, images, labels, LEARNING_RATE)
        return interleaved_medians(steps, repeats, self.device)

    def _iterate(self, defense: Defense, start: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """A local iteration as the training does it, noise included."""
        clients = len(images)
        context = RoundContext(
            0, 0, LEARNING_RATE, Cohort(clients, clients, 100, 100, self.batch_size), self.model.layout,
            tuple((0, client) for client in range(clients)),
        )  # fmt: skip
        weights = start.expand(clients, -1).contiguous()

        def gradients(step: int, now: Tensor) -> ExampleGradients:
            return self.model.example_gradients(now, images, labels, None, self.batch_size)

        return train_locally(gradients, weights, defense, context, 1, precision=weights.dtype).moved


def interleaved_medians(steps: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of every step; each repeat runs all of them, beginning with another one each time."""
    names, seconds = list(steps), {name: [] for name in steps}
    with progress("timing", (WARM_UP + repeats) * len(names), "iterations") as bar:
        for repeat in range(WARM_UP + repeats):
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                began = time.perf_counter()
                steps[name]()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - began)
                bar.advance(1)  # between the times that are taken
    return {name: statistics.median(taken[WARM_UP:]) for name, taken in seconds.items()}


def _batches(data: Dataset, clients: int, batch_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images (K, B, ...) and labels (K, B), the dataset's first ones over and over."""
    places = torch.arange(clients * batch_size).remainder(min(len(data.labels), _EXAMPLES)).reshape(clients, batch_size)
    return data.images[places].to(device, torch.float32), data.labels[places].to(device)


def _row(clients: int, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "clients": clients,
        "ms": {name: round(1000 * value, 3) for name, value in seconds.items()},
        "Fed-CDP / non-private": round(seconds["Fed-CDP"] / seconds["non-private"], 3),
        "Fed-αCDP / Fed-CDP": round(seconds["Fed-αCDP"] / seconds["Fed-CDP"], 3),
        "non-private / plain loop": round(seconds["non-private"] / seconds[LOOP], 3),
        "torch.func / plain loop": round(seconds[TORCH_FUNC] / seconds[LOOP], 3),
    }


def _checks(rows: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The limits that the ratios are held to, for the numbers of clients that were measured."""
    limits = [
        (100, "Fed-CDP / non-private", 0.0, 1.3),
        (100, "Fed-αCDP / Fed-CDP", 0.95, 1.05),
        (1, "non-private / plain loop", 0.0, 1.1),
    ]
    return [
        {"clients": clients, "ratio": ratio, "measured": rows[clients][ratio], "limit": f"{low:g} to {high:g}",
         "held": low <= rows[clients][ratio] <= high}
        for clients, ratio, low, high in limits
        if clients in rows
    ]  # fmt: skip
