"""Per-example gradients of a chain of layers, kept as factors: what clipping needs, at little more than SGD's cost.

A layer's gradient for one example is the product of the loss's transposed derivative by the layer's output and the
windows of its input. Norms, weighted sums and the plain mean come from these factors; for a linear layer (one window)
the norm of the product is the product of the norms (Goodfellow 2015, arXiv:1510.01799).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from harness.base.errors import UsageError
from harness.base.vectors import Layout, group_sums, spread
from harness.models.row_sequence import Product, Recorded, RowSequence

# Cross-entropy of every example, fast where a batch is large and the classes are few.

# A multiple of every vector width: the library computes what is left over at the end by another exponential, and then
# an example's loss would depend, in its last bit, on its place in the batch.
_WIDTH = 16


def example_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses (R, B) of logits (R, B, K) under labels (R, B), each a function of its own example alone.

    Normalising over the classes is several times faster with the examples, and not the few classes, side by side.
    """
    batch = labels.shape[1]
    padding = (0, -batch % _WIDTH)
    by_class, padded = functional.pad(logits.mT, padding), functional.pad(labels, padding)
    return functional.cross_entropy(by_class, padded, reduction="none")[:, :batch]


@dataclass
class _Factors:
    """One layer's factors: derivatives by its output (N, B, L, O) and windows of its input (N, B, L, F)."""

    recorded: Recorded
    derivatives: Tensor

    @property
    def layer(self) -> Product:
        return self.recorded.layer

    @cached_property
    def windows(self) -> Tensor:
        known = self.recorded.windows
        return self.layer.windows(self.recorded.values) if known is None else known

    @property
    def has_one_window(self) -> bool:
        return self.derivatives.shape[2] == 1

    @cached_property
    def kernels(self) -> Tensor:
        """Per-example gradients (N, B, O, F) of the layer's weight, in a window's order."""
        derivatives, windows = self.derivatives.flatten(0, 1), self.windows.flatten(0, 1)
        return torch.bmm(derivatives.mT, windows).unflatten(0, self.windows.shape[:2])

    @cached_property
    def biases(self) -> Tensor:
        """Per-example gradients (N, B, O) of the layer's bias."""
        return self.derivatives.sum(2)

    def kernel_norms(self) -> Tensor:
        if self.has_one_window:
            derivatives, windows = (
                torch.linalg.vector_norm(one, dim=(2, 3)) for one in (self.derivatives, self.windows)
            )
            return derivatives * windows
        return torch.linalg.vector_norm(self.kernels.flatten(2), dim=2)

    def kernel_sum(self, factors: Tensor | None) -> Tensor:
        """Sum over the batch (N, O*F), each example times its factor (N, B)."""
        if factors is not None and not self.has_one_window:
            total = torch.bmm(factors[:, None], self.kernels.flatten(2))[:, 0].unflatten(1, self.kernels.shape[2:])
        else:
            derivatives = self.derivatives if factors is None else self.derivatives * factors[..., None, None]
            total = torch.bmm(derivatives.flatten(1, 2).mT, self.windows.flatten(1, 2))
        return self.layer.over_weights(total)

    def bias_sum(self, factors: Tensor | None) -> Tensor:
        """Sum over the batch (N, O), each example times its factor (N, B)."""
        return self.biases.sum(1) if factors is None else (self.biases * factors[..., None]).sum(1)


class FactoredGradients:
    """Example gradients of N rows with B examples each, as the hooks of a defense see them.

    Args:
        sequence: the network.
        layout: of its parameters.
        weights: (N, P).
        images: (N, B, C, H, W). labels: (N, B).
        present: (N, B) in {0, 1}, examples that were sampled; None for all. The others count as zero everywhere.
        expected: the batch size that :meth:`mean` divides by.
    """

    def __init__(
        self,
        sequence: RowSequence,
        layout: Layout,
        weights: Tensor,
        images: Tensor,
        labels: Tensor,
        present: Tensor | None,
        expected: float,
    ) -> None:
        self.layout, self.expected, self._sequence = layout, expected, sequence
        self.present = _present(present, labels)
        with torch.enable_grad():
            losses = (
                self._alone(weights, images, labels) if len(weights) == 1 else self._together(weights, images, labels)
            )
            self._total = losses.sum() if present is None else (losses * present).sum()
        self.losses = losses.detach()

    def _together(self, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        self._leaves = None
        logits, self._recorded = self._sequence.record(self.layout.split(weights.detach()), images)
        return example_losses(logits, labels)

    def _alone(self, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Losses (1, B) of a single row, whose plain mean is had faster from the weights than from the factors.

        Each tensor is a leaf of its own, since the gradient of a slice would be padded to the length of them all.
        """
        self._leaves = {name: part.requires_grad_() for name, part in self.layout.split(weights[0].detach()).items()}
        logits, self._recorded = self._sequence.record_alone(self._leaves, images[0])
        return functional.cross_entropy(logits, labels[0], reduction="none")[None]

    @cached_property
    def _factors(self) -> list[_Factors]:
        outputs = [one.output for one in self._recorded]
        derivatives = torch.autograd.grad(self._total, outputs, retain_graph=self._leaves is not None)
        if self._leaves is not None:
            derivatives = [derivative[None] for derivative in derivatives]
        return [
            _Factors(recorded, derivative.reshape(*derivative.shape[:3], -1).mT)
            for recorded, derivative in zip(self._recorded, derivatives, strict=True)
        ]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each parameter tensor."""
        return self.layout.sizes

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        found = {}
        for factors in self._factors:
            found[factors.layer.weight] = factors.kernel_norms()
            if factors.layer.bias:
                found[factors.layer.bias] = torch.linalg.vector_norm(factors.biases, dim=2)
        return torch.stack([found[name] for name in self.layout.names], dim=-1)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        return self._sum(dict(zip(self.layout.names, factors.unbind(-1), strict=True)))

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        if self._leaves is None:
            return self._sum({}) / self.expected
        leaves = list(self._leaves.values())
        found = torch.autograd.grad(self._total, leaves, retain_graph=True, materialize_grads=True)
        return torch.cat([one.flatten() for one in found])[None] / self.expected

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        found = {}
        for factors in self._factors:
            found[factors.layer.weight] = factors.layer.over_weights(factors.kernels)
            if factors.layer.bias:
                found[factors.layer.bias] = factors.biases
        return torch.cat([found[name] for name in self.layout.names], dim=-1)

    def _sum(self, by_name: dict[str, Tensor]) -> Tensor:
        found = {}
        for factors in self._factors:
            layer = factors.layer
            found[layer.weight] = factors.kernel_sum(by_name.get(layer.weight))
            if layer.bias:
                found[layer.bias] = factors.bias_sum(by_name.get(layer.bias))
        return torch.cat([found[name] for name in self.layout.names], dim=-1)


class MaterialisedGradients:
    """All per-example gradients at once, for any other network or where all are needed.

    Args:
        gradients: (N, B, P).
        sizes: number of coordinates of each parameter tensor.
        present: (N, B) in {0, 1}, see :class:`FactoredGradients`.
        expected: the batch size that :meth:`mean` divides by; None for B.
    """

    def __init__(
        self, gradients: Tensor, sizes: tuple[int, ...], present: Tensor | None = None, expected: float | None = None
    ) -> None:
        self.sizes, self._expected = sizes, gradients.shape[1] if expected is None else expected
        self._gradients = gradients if present is None else gradients * present[..., None]
        self._version = self._gradients._version
        self.present = _present(present, gradients)

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        return group_sums(self._gradients.square(), self.sizes).sqrt()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        return (self._gradients * spread(factors, self.sizes)).sum(1)

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        return self._gradients.sum(1) / self._expected

    def materialise(self) -> Tensor:
        """The gradients (N, B, P).

        Raises:
            UsageError: somebody changed them in place, whom this was given to before.
        """
        if self._gradients._version != self._version:
            raise UsageError("client_step changes the examples' gradients in place, which are read there; copy them")
        return self._gradients


def _present(given: Tensor | None, like: Tensor) -> Tensor:
    """Return which places (N, B) hold an example; all of them where nothing is given."""
    return like.new_ones(like.shape[:2], dtype=torch.bool) if given is None else given.bool()
