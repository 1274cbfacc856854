"""Per-example gradients of a chain of layers, kept as factors: what clipping needs, at little more than SGD's cost.

A layer's gradient for one example is the product of the loss's derivative by the layer's output and the transposed
columns of its input. Norms, weighted sums and the plain mean come from these factors; for a linear layer (one column)
the norm of the product is the product of the norms (Goodfellow 2015, arXiv:1510.01799).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from harness.layout import Layout, spread
from harness.models.row_losses import example_losses
from harness.models.row_sequence import Product, Recorded, RowSequence


@dataclass
class _Factors:
    """One layer's factors: derivatives by its output (N, B, O, L) and columns of its input (N, B, F, L)."""

    recorded: Recorded
    derivatives: Tensor

    @property
    def layer(self) -> Product:
        return self.recorded.layer

    @cached_property
    def columns(self) -> Tensor:
        known = self.recorded.columns
        return self.layer.columns(self.recorded.values) if known is None else known

    @property
    def has_one_column(self) -> bool:
        return self.derivatives.shape[-1] == 1

    @cached_property
    def kernels(self) -> Tensor:
        """Per-example gradients (N, B, O*F) of the layer's weight."""
        derivatives, columns = self.derivatives.flatten(0, 1), self.columns.flatten(0, 1)
        return torch.bmm(derivatives, columns.mT).flatten(1).unflatten(0, self.columns.shape[:2])

    @cached_property
    def biases(self) -> Tensor:
        """Per-example gradients (N, B, O) of the layer's bias."""
        return self.derivatives.sum(-1)

    def kernel_norms(self) -> Tensor:
        if self.has_one_column:
            return torch.linalg.vector_norm(self.derivatives, dim=(2, 3)) * torch.linalg.vector_norm(
                self.columns, dim=(2, 3)
            )
        return torch.linalg.vector_norm(self.kernels, dim=2)

    def kernel_sum(self, factors: Tensor | None) -> Tensor:
        """Sum over the batch (N, O*F), each example times its factor (N, B)."""
        if self.has_one_column:
            derivatives = self.derivatives[..., 0] if factors is None else self.derivatives[..., 0] * factors[..., None]
            return torch.bmm(derivatives.mT, self.columns[..., 0]).flatten(1)
        if factors is not None:
            return torch.bmm(factors[:, None], self.kernels)[:, 0]
        if self.layer.is_one_convolution(self.recorded.values):
            return self._convolved()
        total = torch.bmm(self.derivatives[:, 0], self.columns[:, 0].mT)
        for example in range(1, self.columns.shape[1]):
            total.baddbmm_(self.derivatives[:, example], self.columns[:, example].mT)
        return total.flatten(1)

    def _convolved(self) -> Tensor:
        """The plain sum (1, O*F) over a single row's batch, by the library's own convolution."""
        convolution = self.layer.convolution
        size = convolution.weight.shape
        derivatives = self.layer.output(self.derivatives, self.recorded.values)[0]
        kernels = conv2d_weight(
            self.recorded.values[0], size, derivatives, convolution.stride, convolution.padding
        )  # fmt: skip
        return kernels.reshape(1, -1)

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
        self.layout, self.expected = layout, expected
        # Only a single row's plain mean is had faster from the weights than from the factors; see mean(). Each tensor
        # stands on its own, since the gradient of a slice would be padded to the length of them all.
        self._weights = {
            name: part.requires_grad_(len(weights) == 1) for name, part in layout.split(weights.detach()).items()
        }
        self._alone = len(weights) == 1
        with torch.enable_grad():
            logits, self._recorded = sequence.record(self._weights, images)
            losses = example_losses(logits, labels)
            self._total = losses.sum() if present is None else (losses * present).sum()
        self.losses = losses.detach()

    @cached_property
    def _factors(self) -> list[_Factors]:
        derivatives = torch.autograd.grad(self._total, [one.product for one in self._recorded])
        return [_Factors(*pair) for pair in zip(self._recorded, derivatives, strict=True)]

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
        if self._alone and "_factors" not in self.__dict__:
            parts = [self._weights[name] for name in self.layout.names]
            found = torch.autograd.grad(self._total, parts, retain_graph=True, materialize_grads=True)
            return torch.cat([one.flatten(1) for one in found], dim=1) / self.expected
        return self._sum({}) / self.expected

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        found = {}
        for factors in self._factors:
            found[factors.layer.weight] = factors.kernels
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
    """The same for any other network: all per-example gradients (N, B, P) at once."""

    def __init__(self, gradients: Tensor, layout: Layout, present: Tensor | None, expected: float) -> None:
        self.layout, self.expected = layout, expected
        self._gradients = gradients if present is None else gradients * present[..., None]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each parameter tensor."""
        return self.layout.sizes

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        pieces = self._gradients.split(self.sizes, dim=-1)
        return torch.stack([torch.linalg.vector_norm(piece, dim=-1) for piece in pieces], dim=-1)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        return (self._gradients * spread(factors, self.sizes)).sum(1)

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        return self._gradients.sum(1) / self.expected

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        return self._gradients
