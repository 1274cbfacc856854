"""A gradient by a network's weights that is differentiated by the images, and the targets, once."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from harness.models.four_passes.layers import Layer
from harness.models.four_passes.weights import Weight, Weights
from harness.models.row_sigmoid import Context
from harness.vectors.alignment import aligned


class Front(Protocol):
    """What stands first, before which nothing moves; see :class:`~harness.models.four_passes.layers.Layer`."""

    def forward(self, images: Tensor) -> Tensor: ...
    def backward(self, outer: Tensor) -> None: ...
    def forward_moved(self) -> Tensor: ...
    def backward_moved(self, outer_moved: Tensor) -> Tensor: ...


class Loss(Protocol):
    """Makes the mean loss of what the layers make, and of targets."""

    def __call__(self, values: Tensor, targets: Tensor) -> Tensor: ...


class Network(NamedTuple):
    """Weights that nobody else uses, and what makes values of images, these into others, and a loss of the last.

    ``loss`` is autograd's, of a few values, with the weights ``of_loss``.
    """

    weights: Weights
    front: Front
    layers: Layer
    of_loss: Sequence[Weight]
    loss: Loss


def gradient(images: Tensor, targets: Tensor, network: Network) -> Tensor:
    """The gradient (P,) of the loss of images (B, C, H, W)."""
    return _Gradient.apply(images, targets, network, torch.is_grad_enabled())


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, images: Tensor, targets: Tensor, network: Network, create_graph: bool) -> Tensor:
        weights, front, layers, of_loss, loss = network
        values = layers.forward(front.forward(images)).requires_grad_()
        targets = targets.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            inputs = [values, *(weight.value for weight in of_loss)]
            first = torch.autograd.grad(loss(values, targets), inputs, create_graph=create_graph)
        for weight, by_weight in zip(of_loss, first[1:], strict=True):
            weight.gradient.copy_(by_weight)
        front.backward(layers.backward(first[0].detach()))
        ctx.known = network, values, targets, first
        return weights.whole_gradient()

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, direction: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (weights, front, layers, of_loss, _), values, targets, first = ctx.known
        weights.move(aligned(direction))
        moved = layers.forward_moved(front.forward_moved())
        # Second derivatives are symmetric: along a direction is what autograd makes of it as an outer derivative.
        wanted = [values, targets] if targets.requires_grad else [values]
        directions = [moved, *(weight.direction for weight in of_loss)]
        second = torch.autograd.grad(first, wanted, directions, retain_graph=True)
        by_images = front.backward_moved(layers.backward_moved(second[0]))
        return by_images, second[1] if targets.requires_grad else None, None, None
