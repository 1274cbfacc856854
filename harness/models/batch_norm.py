"""BatchNorm as clients train it: each batch is normalised by statistics of its own, which move the running ones.

Sources: Ioffe and Szegedy, ICML 2015. FedAvg averages running statistics with the weights, so they travel, and who has
them from before and after a client's training knows the mean and the variance of its batches in every layer (Huang et
al., NeurIPS 2021, "Evaluating Gradient Inversion Attacks and Defenses in Federated Learning", section 3). FedBN (Li et
al., ICLR 2021) keeps them at the client.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from harness.base.errors import UsageError
from harness.base.vectors import Layout

BatchNorm = nn.modules.batchnorm._BatchNorm
Buffers = dict[str, Tensor]
#: The names of running statistics, which layers keep beside parameters: no factory can fix them.
STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}

UNCOVERED = "running statistics of BatchNorm travel beside the update without noise; no epsilon covers them"


class LayerStatistics(NamedTuple):
    """Statistics of one layer's input over each row's batch: mean and (biased) variance (R, channels), of ``count``
    values."""

    name: str
    mean: Tensor
    variance: Tensor
    count: int


def refusal(name: str, why: str) -> UsageError:
    """The one line for what cannot be done with a network that normalises batches as a whole."""
    return UsageError(
        f"{why}, and model {name!r} has BatchNorm in training mode, under which a batch has one gradient as a whole; "
        f"use --model {name}+group_norm (harness.models.group_norm in Python)"
    )


def trained_layers(module: nn.Module) -> dict[str, BatchNorm]:
    """Layers that normalise a batch by its own statistics, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, BatchNorm) and layer.training}


def keep_running_statistics(module: nn.Module) -> None:
    """Keep running statistics from moving in any forward pass from now on: each client's are followed apart
    (:class:`RunningStatistics`)."""
    for layer in trained_layers(module).values():
        layer.track_running_stats = False


@contextmanager
def in_evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Use running statistics in the place of the batch's for passes in the block."""
    layers = list(trained_layers(module).values())
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


@contextmanager
def recorded(module: nn.Module) -> Iterator[list[LayerStatistics]]:
    """Yield a list for the statistics of what every BatchNorm is given, (channels,) each, in the order of calling. A
    forward pass in the block fills it."""
    seen: list[LayerStatistics] = []

    def record(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        (inputs,) = given
        axes = [axis for axis in range(inputs.dim()) if axis != 1]
        variance, count = inputs.var(axes, unbiased=False), inputs.numel() // inputs.shape[1]
        seen.append(LayerStatistics(name, inputs.mean(axes), variance, count))

    hooks = [
        layer.register_forward_pre_hook(partial(record, name))
        for name, layer in module.named_modules()
        if isinstance(layer, BatchNorm)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def running_of(layer: BatchNorm) -> list[tuple[str, Tensor]]:
    """A layer's running statistics by name, without weights, which are buffers too where they are not trained."""
    return [(name, value) for name, value in layer.named_buffers() if name in STATISTICS]


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[Buffers]:
    """Yield buffers that a single pass in the block is given in the place of the network's. Torch itself leaves in them
    what it normalises the batch by. That has no cost, since with a momentum of one running statistics are the last
    batch's."""
    layers = {name: layer for name, layer in trained_layers(module).items() if layer.running_mean is not None}
    momenta = {name: layer.momentum for name, layer in layers.items()}
    for layer in layers.values():
        layer.track_running_stats, layer.momentum = True, 1.0
    try:
        yield {
            f"{name}.{key}": torch.zeros_like(value)
            for name, layer in layers.items()
            for key, value in running_of(layer)
        }
    finally:
        for name, layer in layers.items():
            layer.track_running_stats, layer.momentum = False, momenta[name]


def layers_of(buffers: Buffers, counts: Mapping[str, int]) -> list[LayerStatistics]:
    """Batches' statistics from running ones (R, channels) that are the last batch's, with the unbiased variance."""
    names = [key.removesuffix(".running_mean") for key in buffers if key.endswith(".running_mean")]
    return [
        LayerStatistics(
            name, buffers[f"{name}.running_mean"],
            buffers[f"{name}.running_var"] * ((counts[name] - 1) / counts[name]), counts[name],
        )
        for name in names
    ]  # fmt: skip


class RunningStatistics:
    """Running statistics of N clients, each tensor (N, ...) named as in the network's state.

    Args:
        layers: of the network all clients begin with.
        rows: N.
    """

    def __init__(self, layers: Mapping[str, BatchNorm], rows: int) -> None:
        self._layers = {name: layer for name, layer in layers.items() if layer.running_mean is not None}
        self.buffers: Buffers = {
            f"{name}.{key}": value.expand(rows, *value.shape).clone()
            for name, layer in self._layers.items()
            for key, value in running_of(layer)
        }

    def follow(self, batches: Sequence[LayerStatistics]) -> None:
        """Moves them as the layers do in a local step of every client."""
        for name, mean, variance, count in batches:
            if name in self._layers:
                tracked = int(self.buffers[f"{name}.num_batches_tracked"][0])
                factor = _factor(self._layers[name], tracked)
                self._move(f"{name}.running_mean", mean, factor)
                self._move(f"{name}.running_var", variance * (count / (count - 1)), factor)
                self.buffers[f"{name}.num_batches_tracked"] += 1

    def _move(self, key: str, seen: Tensor, factor: float) -> None:
        self.buffers[key] = (1 - factor) * self.buffers[key] + factor * seen


def shares_of(layer: BatchNorm, steps: int) -> list[float]:
    """Return how much of each step's batch is in running statistics in the end; the rest is what they began with."""
    assert layer.num_batches_tracked is not None
    tracked = int(layer.num_batches_tracked)
    shares: list[float] = []
    for step in range(steps):
        factor = _factor(layer, tracked + step)
        shares = [share * (1 - factor) for share in shares] + [factor]
    return shares


def recovered(
    layers: Mapping[str, BatchNorm], after: Buffers, counts: Mapping[str, int], steps: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what running statistics after N clients' local steps give away, to who knows those before.

    Of one step it is the batch's mean and variance; of several, their means weighted by :func:`shares_of`, and no more.

    Args:
        layers: with the running statistics that all clients began with.
        after: those that were sent, (N, channels).
        counts: values per channel of a layer's input.
        steps: L.

    Returns:
        By layer mean and biased variance (N, channels), in the order of ``layers``. What does not move is left out.
    """
    found = {}
    for name, layer in layers.items():
        if layer.running_mean is None or layer.running_var is None or f"{name}.running_mean" not in after:
            continue
        moved = sum(shares_of(layer, steps))
        if moved > 0:
            # In double precision: momentum makes small differences of large numbers.
            mean, variance = (
                ((sent.double() - (1 - moved) * before.double().to(sent.device)) / moved).to(sent.dtype)
                for sent, before in (
                    (after[f"{name}.running_mean"], layer.running_mean),
                    (after[f"{name}.running_var"], layer.running_var),
                )
            )
            count = counts[name]
            found[name] = mean, variance.clamp_min(0) * ((count - 1) / count)
    return found


def _factor(layer: BatchNorm, tracked: int) -> float:
    """The weight of the next batch; without a momentum, running statistics are means of all batches."""
    return 1 / (tracked + 1) if layer.momentum is None else float(layer.momentum)


def places_of(module: nn.Module, image_shape: tuple[int, ...]) -> dict[str, int]:
    """Values per channel and example that each layer in training mode sees."""
    layers = trained_layers(module)
    with torch.no_grad(), in_evaluation_mode(module), recorded(module) as seen:
        module(torch.zeros(1, *image_shape).to(next(module.parameters())))
    names = [one.name for one in seen if one.name in layers]
    if len(set(names)) < len(names):
        raise UsageError("it calls a BatchNorm layer twice; give every place its own")
    return {one.name: one.count for one in seen if one.name in layers}


def require_variance(name: str, places: Mapping[str, int], examples: int) -> None:
    """Raises:
    UsageError: a layer of the network sees a single value per channel in batches of so many examples.
    """
    alone = next((layer for layer, count in places.items() if count * examples == 1), None)
    if alone is not None:
        raise UsageError(
            f"model {name!r}: of a batch of one example {alone}, BatchNorm in training mode, sees one value per "
            f"channel, which has no variance; use batches of 2 or more, larger images, or --model {name}+group_norm"
        )


# The gradient of a batch that is normalised as a whole: no example has one of its own.


class JointGradients:
    """Gradients that the hooks of a defense see of N clients whose batches are normalised as a whole: their mean
    gradients only.

    Args:
        name: of the network, for errors.
        gradients: (N, P), of each batch's mean loss.
        statistics: what each BatchNorm was given.
        sizes: number of coordinates of each parameter tensor.
        batch: B.
    """

    def __init__(
        self, name: str, gradients: Tensor, statistics: Sequence[LayerStatistics], sizes: tuple[int, ...], batch: int
    ) -> None:
        self.sizes, self.statistics = sizes, statistics
        self.present = gradients.new_ones(len(gradients), batch, dtype=torch.bool)
        self._name, self._gradients = name, gradients

    @classmethod
    def of(
        cls, name: str, module: nn.Module, layout: Layout, places: Mapping[str, int], weights: Tensor, images: Tensor,
        labels: Tensor,
    ) -> "JointGradients":  # fmt: skip
        """Those of batches (N, B, C, H, W) with labels (N, B) under weights (N, P), one after another.

        A batch fills the library's own layers, so a client costs what its own training loop costs. ``places``: values
        per channel and example that each layer in training mode sees.
        """
        counts = {layer: count * images.shape[1] for layer, count in places.items()}
        gradients, statistics = [], []
        for flat, batch, truth in zip(weights, images, labels, strict=True):
            leaves = {key: _laid_out(part.detach()).requires_grad_() for key, part in layout.split(flat).items()}
            with torch.enable_grad(), batch_statistics(module) as kept:
                loss = functional.cross_entropy(functional_call(module, leaves | kept, (_laid_out(batch),)), truth)
            parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            gradients.append(torch.cat([part.flatten() for part in parts]))
            statistics.append(kept)
        together = {key: torch.stack([kept[key] for kept in statistics]) for key in statistics[0]}
        return cls(name, torch.stack(gradients), layers_of(together, counts), layout.sizes, images.shape[1])

    def mean(self) -> Tensor:
        """The batch gradient (N, P)."""
        return self._gradients

    def norms(self) -> Tensor:
        """Raises UsageError."""
        raise self._refused()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Raises UsageError."""
        raise self._refused()

    def materialise(self) -> Tensor:
        """Raises UsageError."""
        raise self._refused()

    def _refused(self) -> UsageError:
        return refusal(self._name, "gradients of single examples are clipped or read here")


def _laid_out(values: Tensor) -> Tensor:
    """Images, or a convolution's weights, in the order in which convolutions are fastest; others as they are."""
    return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values


# What is known of the batches of a client whose network normalises them as a whole.


@dataclass(frozen=True, eq=False)
class KnownBatches:
    """The batches behind R observations.

    Attributes:
        size: B, examples that are normalised together.
        statistics: by BatchNorm layer the mean and variance (R, channels) that running statistics gave away; None
            where these do not travel.
        shares: by layer how much of each batch is in them, in the order of the batches; adds up to one.
    """

    size: int
    statistics: Mapping[str, tuple[Tensor, Tensor]] | None = None
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def of_layer(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return what is known of one layer; None where nothing is."""
        return None if self.statistics is None else self.statistics.get(name)

    def take(self, index: Tensor) -> "KnownBatches":
        """Those of some rows."""
        return self._each(lambda one: one[index])

    def to(self, device: torch.device, dtype: torch.dtype) -> "KnownBatches":
        """Return the known batches on another device and in another precision."""
        return self._each(lambda one: one.to(device, dtype))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "KnownBatches":
        if self.statistics is None:
            return self
        changed = {name: (change(mean), change(variance)) for name, (mean, variance) in self.statistics.items()}
        return replace(self, statistics=changed)

    def facts(self) -> tuple[str, ...]:
        """Return what tells it from another, as text."""
        if self.statistics is None:
            return "batches", str(self.size), "hidden"
        digest = hashlib.sha256()
        for tensor in (part for pair in self.statistics.values() for part in pair):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return "batches", str(self.size), digest.hexdigest(), repr(self.shares)
