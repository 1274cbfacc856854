"""The gradient of a chain of layers for rows, and its derivative by images and targets, written out.

PyTorch's own derivative of a gradient takes several times as many operations, and small networks spend their time on
starting these.
"""

from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harness.base.vectors import Layout
from harness.models.chain_links import CrossEntropy, Differentiated, Link, Patched, Reshaped, Sigmoid, Weighted
from harness.models.row_convolution import GroupedRows, are_grouped
from harness.models.row_operators import zero_padding
from harness.models.row_products import ColumnRows, LinearRows
from harness.models.row_sequence import Named, Product, RowSequence, places_of, without_weights
from harness.models.row_sigmoid import Context, RowSigmoid


class _Gradient(Function):
    @staticmethod
    def forward(ctx: Context, images: Tensor, targets: Tensor, chain: "Chain") -> Tensor:
        ctx.chain = chain
        return chain.gradient(images, targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, directions: Tensor) -> tuple[Tensor, Tensor | None, None]:
        by_images, by_targets = ctx.chain.derivatives(directions)
        return by_images, by_targets if ctx.needs_input_grad[1] else None, None


def chain_gradient(sequence: RowSequence, layout: Layout, weights: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """Gradients (R, P) of each row's mean cross-entropy by weights (R, P); differentiable once, by images and targets.

    Args:
        sequence: the network, of which the ``layout`` is.
        images: (R, B, C, H, W).
        targets: labels (R, B) or probabilities (R, B, K).
    """
    changes = torch.is_grad_enabled() and (images.requires_grad or targets.requires_grad)
    return _Gradient.apply(images, targets, Chain(sequence, layout, weights, changes))


class Chain:
    """One evaluation of a network with weights (R, P); ``changes``: whether derivatives of the gradient will follow."""

    def __init__(self, sequence: RowSequence, layout: Layout, weights: Tensor, changes: bool) -> None:
        self._sequence, self._layout, self._named = sequence, layout, layout.split(weights)
        self._changes = changes

    def gradient(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss's gradient (R, P)."""
        links, values = list[Link](), images
        for stage in self._sequence.stages:
            for link in _links(stage, self._named, values, self._changes):
                values = link.forward(values)
                links.append(link)
        # What lies before the first weights is met by no gradient, only by the derivative by the images.
        before = len(list(takewhile(lambda link: not isinstance(link, Weighted), links)))
        self._before, self._links = links[:before], links[before:]
        self._loss, made = CrossEntropy(values, targets), dict[str, Tensor]()
        outer = self._loss.backward()
        for link in reversed(self._links):
            if isinstance(link, Weighted):
                made |= link.gradients(outer)
            if link is not self._links[0]:
                outer = link.backward(outer)
        return torch.cat([made[name].flatten(1) for name in self._named], 1)

    def derivatives(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the gradient's product with directions (R, P), by the images and the targets."""
        named, (first, *others) = self._layout.split(directions), self._links
        for link in self._links:
            if isinstance(link, Weighted):
                link.move(named)
        assert isinstance(first, Weighted)
        change = first.own_change()
        for link in others:
            change = link.forward_change(change)
        outer, by_targets = self._loss.backward_change(change)
        for link in reversed(self._links):
            outer = link.backward_change(outer)
        for link in reversed(self._before):
            outer = link.backward(outer)
        return outer, by_targets


def _links(stage: Product | nn.Module, named: Named, values: Tensor, changes: bool) -> list[Link]:
    """What a stage of the network is made of, for such values (R, B, ...)."""
    if isinstance(stage, Product):
        return _weighted(stage, named, values)
    if type(stage) is RowSigmoid:
        return [Sigmoid()]
    if type(stage) is nn.Flatten and (stage.start_dim, stage.end_dim) == (1, -1):
        return [Reshaped(-1)]
    return [Differentiated(lambda given: without_weights(stage, given, given), changes)]


def _weighted(stage: Product, named: Named, values: Tensor) -> list[Link]:
    layer = stage.convolution
    if layer is None:
        return [Weighted(LinearRows(), False, named, stage.weight, stage.bias)]
    if are_grouped(values):
        form = GroupedRows(layer.stride, zero_padding(layer))
        return [Weighted(form, True, named, stage.weight, stage.bias)]
    columns = Weighted(ColumnRows(), False, named, stage.weight, stage.bias)
    patches = Patched(layer.kernel_size, zero_padding(layer), layer.stride)
    return [patches, columns, Reshaped(-1, *places_of(values, layer))]
