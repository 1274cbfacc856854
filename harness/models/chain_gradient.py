"""The gradient of a chain of layers for rows, and its derivative by images and targets, written out.

PyTorch's own derivative of a gradient takes several times as many operations, and small networks spend their time on
starting these.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import takewhile
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harness.base.vectors import Layout
from harness.models.bilinear import ColumnRows, Context, LinearRows, Products, RowSigmoid, logistic, logistic_slope
from harness.models.row_layers import GroupedRows, are_grouped
from harness.models.row_operators import Size, images_of, patches_of, zero_padding
from harness.models.row_sequence import Named, Product, RowSequence, places_of, without_weights

# Layers of a chain for rows with weights of their own, each with the derivatives that matching gradients takes.
#
# Of a loss L the gradient by the weights is matched, and the match is differentiated by the images. The derivative of
# the match by that gradient is a direction V in the space of weights, and so what is wanted is the derivative by the
# images of the change of L when the weights move along V. It takes one more pass each way: forward how a layer's
# output changes, backward the derivative of L's change by the layer's values.


class Link(Protocol):
    """A layer in one evaluation; it keeps what later passes need, which come in this order. Values are (R, B, ...)."""

    def forward(self, values: Tensor) -> Tensor:
        """The output."""
        ...

    def backward(self, outer: Tensor) -> Tensor:
        """L's derivative by the values, of that by the output."""
        ...

    def forward_change(self, change: Tensor) -> Tensor:
        """The output's change, where the values change so."""
        ...

    def backward_change(self, outer: Tensor) -> Tensor:
        """The derivative of L's change by the values, of that by the output."""
        ...


class ShiftedProducts(Products, Protocol):
    """Products to which a bias (R, O) may be added."""

    def product(self, values: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
        """The output."""
        ...


class Weighted:
    """A layer with weights.

    Args:
        form: the product that it is.
        stacks: whether one such product of twice the channels costs less than two.
        named: the network's parameters (R, ...). weight, bias: the names of its own.
    """

    def __init__(self, form: ShiftedProducts, stacks: bool, named: Named, weight: str, bias: str | None) -> None:
        self._form, self._stacks, self._weight, self._bias = form, stacks, weight, bias
        self._kernels, self._shift = self._own(named)
        if stacks:  # every product would copy what is a part of a flat vector
            self._kernels = self._kernels.contiguous()

    def _own(self, named: Named) -> tuple[Tensor, Tensor | None]:
        return named[self._weight], None if self._bias is None else named[self._bias]

    def forward(self, values: Tensor) -> Tensor:
        self._values = values
        return self._form.product(values, self._kernels, self._shift)

    def gradients(self, outer: Tensor) -> dict[str, Tensor]:
        """L's derivatives (R, ...) by the own parameters, of that by the output, which is kept."""
        self._outer = outer
        made = {self._weight: self._form.by_kernels(outer, self._values, self._kernels)}
        return made if self._bias is None else made | {self._bias: outer.contiguous().sum((1, *range(3, outer.dim())))}

    def backward(self, outer: Tensor) -> Tensor:
        return self._form.by_values(outer, self._values, self._kernels)

    def move(self, directions: Named) -> None:
        """Says along what the network's parameters move."""
        self._along, self._shift_along = self._own(directions)

    def own_change(self) -> Tensor:
        """The output's change where the values stay."""
        return self._form.product(self._values, self._along, self._shift_along)

    def forward_change(self, change: Tensor) -> Tensor:
        if not self._stacks:
            return self.own_change().add_(self._form.product(change, self._kernels))
        values, stacked = torch.cat([self._values, change], 2), torch.cat([self._along, self._kernels], 2)
        return self._form.product(values, stacked, self._shift_along)

    def backward_change(self, outer: Tensor) -> Tensor:
        if self._stacks:
            both, stacked = torch.cat([outer, self._outer], 2), torch.cat([self._kernels, self._along], 1)
            return self._form.by_values(both, self._values, stacked)
        made = self._form.by_values(outer, self._values, self._kernels)
        return made.add_(self._form.by_values(self._outer, self._values, self._along))


class Sigmoid:
    """The logistic function; see :class:`~harness.models.bilinear.RowSigmoid`."""

    def forward(self, values: Tensor) -> Tensor:
        self._output = logistic(values)
        return self._output

    @cached_property
    def _slope(self) -> Tensor:
        return logistic_slope(self._output)

    def backward(self, outer: Tensor) -> Tensor:
        self._outer = outer
        return outer * self._slope

    def forward_change(self, change: Tensor) -> Tensor:
        self._curved = self._outer * change
        return change * self._slope

    def backward_change(self, outer: Tensor) -> Tensor:
        # The slope's own slope is the slope times 1 - 2 output.
        return torch.addcmul(outer + self._curved, self._curved, self._output, value=-2).mul_(self._slope)


class Reshaped:
    """The same numbers in another shape (R, B, ...)."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape

    def forward(self, values: Tensor) -> Tensor:
        self._before = values.shape
        return values.reshape(*values.shape[:2], *self._shape)

    def backward(self, outer: Tensor) -> Tensor:
        return outer.reshape(self._before)

    def forward_change(self, change: Tensor) -> Tensor:
        return self.forward(change)

    def backward_change(self, outer: Tensor) -> Tensor:
        return self.backward(outer)


class Patched:
    """Images as the patches (R, B, F, L) that a convolution sees."""

    def __init__(self, kernel: Size, padding: Size, stride: Size) -> None:
        self._geometry = kernel, padding, stride

    def forward(self, values: Tensor) -> Tensor:
        self._size = tuple(values.shape[-2:])
        return patches_of(values, *self._geometry)

    def backward(self, outer: Tensor) -> Tensor:
        return images_of(outer, self._size, *self._geometry)

    def forward_change(self, change: Tensor) -> Tensor:
        return self.forward(change)

    def backward_change(self, outer: Tensor) -> Tensor:
        return self.backward(outer)


class Differentiated:
    """Any layer without weights, by PyTorch's own derivatives.

    The change of the output is the derivative of the backward pass by what it began with; ``changes`` says whether
    anybody will ask for it.
    """

    def __init__(self, layer: Callable[[Tensor], Tensor], changes: bool) -> None:
        self._layer, self._changes = layer, changes

    def forward(self, values: Tensor) -> Tensor:
        with torch.enable_grad():
            self._values = values.detach().requires_grad_()
            self._output = self._layer(self._values)
        return self._output.detach()

    def backward(self, outer: Tensor) -> Tensor:
        with torch.enable_grad():
            self._outer = outer.detach().requires_grad_()
            (self._by_values,) = torch.autograd.grad(
                self._output, self._values, self._outer, create_graph=self._changes
            )
        return self._by_values.detach()

    def forward_change(self, change: Tensor) -> Tensor:
        made, self._curved = torch.autograd.grad(
            self._by_values, (self._outer, self._values), change, retain_graph=True, materialize_grads=True
        )
        return made

    def backward_change(self, outer: Tensor) -> Tensor:
        (made,) = torch.autograd.grad(self._output, self._values, outer)
        return made.add_(self._curved)


class CrossEntropy:
    """The mean cross-entropy of logits (R, B, K): what the passes of a chain begin with.

    Args:
        targets: labels (R, B) or probabilities (R, B, K).
    """

    def __init__(self, logits: Tensor, targets: Tensor) -> None:
        self._shares, examples = logits.softmax(-1), logits.shape[1]
        if targets.dim() == 2:
            targets = torch.zeros_like(logits).scatter_(-1, targets[..., None], 1.0)
        self._targets, self._examples = targets, examples
        self._total = targets.sum(-1, keepdim=True)

    def backward(self) -> Tensor:
        """L's derivative by the logits."""
        return (self._shares * self._total - self._targets) / self._examples

    def backward_change(self, change: Tensor) -> tuple[Tensor, Tensor]:
        """The derivatives of L's change by the logits and by the targets, where the logits change so."""
        further = change - (self._shares * change).sum(-1, keepdim=True)
        return self._shares * further * (self._total / self._examples), further / -self._examples


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
