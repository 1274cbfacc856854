"""A gradient by a network's weights that is differentiated by the images, and the targets, once."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from harness.models.four_passes.layers import Layer
from harness.models.four_passes.weights import Weights
from harness.models.row_sigmoid import Context
from harness.vectors.alignment import aligned


class Front(Protocol):
    """What stands first, before which nothing moves; see :class:`~harness.models.four_passes.layers.Layer`."""

    def forward(self, images: Tensor) -> Tensor: ...
    def backward(self, outer: Tensor) -> None: ...
    def forward_moved(self) -> Tensor: ...
    def backward_moved(self, outer_moved: Tensor) -> Tensor: ...


class Network(NamedTuple):
    """Weights that nobody else uses, and what makes values of images, and logits of these."""

    weights: Weights
    front: Front
    layers: Layer


def gradient(images: Tensor, targets: Tensor, network: Network) -> Tensor:
    """The gradient (P,) of the mean cross-entropy of images (B, C, H, W) with labels (B,) or probabilities (B, K)."""
    return _Gradient.apply(images, targets, network, torch.is_grad_enabled())


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, images: Tensor, targets: Tensor, network: Network, create_graph: bool) -> Tensor:
        weights, front, layers = network
        logits = layers.forward(front.forward(images)).requires_grad_()
        targets = targets.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            (first,) = torch.autograd.grad(functional.cross_entropy(logits, targets), logits, create_graph=create_graph)
        front.backward(layers.backward(first.detach()))
        ctx.known = network, logits, targets, first
        return weights.whole_gradient()

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, direction: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (weights, front, layers), logits, targets, first = ctx.known
        weights.move(aligned(direction))
        moved = layers.forward_moved(front.forward_moved())
        # Second derivatives are symmetric: along a direction is what autograd makes of it as an outer derivative.
        wanted = [logits, targets] if targets.requires_grad else [logits]
        second = torch.autograd.grad(first, wanted, moved, retain_graph=True)
        by_images = front.backward_moved(layers.backward_moved(second[0]))
        return by_images, second[1] if targets.requires_grad else None, None, None
