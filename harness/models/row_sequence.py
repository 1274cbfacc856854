"""Feed-forward networks evaluated for rows with separate weights directly, without the cost of ``vmap``.

Every layer with weights is a product of rows: of a linear layer's values (R, B, F) with weights (R, O, F), of what a
convolution sees at each of L places. Where example gradients are wanted, it leaves that behind: windows (R, B, L, F),
one per example (L = 1) for a linear layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from harness.base.vectors import Layout
from harness.models.bilinear import ColumnRows, Context, LinearRows, Products, RowSigmoid, logistic, logistic_slope
from harness.models.feature_extractor import FeatureExtractor
from harness.models.imprint import Imprint, Lightened, WithInsertedModule
from harness.models.row_layers import (
    GroupedRows,
    RowELU,
    are_grouped,
    as_kernels,
    as_windows,
    convolve_rows,
    places_along,
    windows_of,
)
from harness.models.row_operators import MatrixProduct, Size, images_of, is_plain_convolution, patches_of, zero_padding

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Product:
    """A layer with weights: a ``convolution``, or a linear layer."""

    weight: str
    bias: str | None
    convolution: nn.Conv2d | None = None

    def __call__(self, named: Named, values: Tensor) -> Tensor:
        layer, bias = self.convolution, None if self.bias is None else named[self.bias]
        if layer is None:
            product = MatrixProduct.apply(named[self.weight], values.mT).mT
            return product if bias is None else product + bias[:, None]
        if are_grouped(values):
            product = convolve_rows(values, named[self.weight], layer)
        else:
            patches = patches_of(values, layer.kernel_size, zero_padding(layer), layer.stride)
            product = self._of_patches(named, patches).unflatten(-1, places_of(values, layer))
        return product if bias is None else product + bias[:, None, :, None, None]

    def _of_patches(self, named: Named, patches: Tensor) -> Tensor:
        """Products (R, B, O, L) of patches (R, B, F, L)."""
        rows, examples = patches.shape[:2]
        kernels = named[self.weight].flatten(2)
        if examples > 1:
            kernels = kernels[:, None].expand(-1, examples, -1, -1).flatten(0, 1)
        return MatrixProduct.apply(kernels, patches.flatten(0, 1)).unflatten(0, (rows, examples))

    def record(self, named: Named, values: Tensor) -> "Recorded":
        """The layer's output, and what the loss's derivative by its weights is made of."""
        windows = self.windows(values)
        product = torch.bmm(windows.flatten(1, 2), self.over_windows(named[self.weight]).mT)
        if self.bias is not None:
            product = product + named[self.bias][:, None]
        if self.convolution is None:
            output = product
        else:
            output = product.unflatten(1, windows.shape[1:3]).mT.unflatten(-1, places_of(values, self.convolution))
        if not output.requires_grad:
            output.requires_grad_()
        return Recorded(self, values.detach(), windows.detach(), output)

    def record_alone(self, named: Named, values: Tensor) -> "Recorded":
        """Return the record of :meth:`record` for weights and values (B, ...) of one row, by the library's own
        layer."""
        weight, bias, layer = named[self.weight], None if self.bias is None else named[self.bias], self.convolution
        if layer is None:
            output = functional.linear(values, weight, bias)
        else:
            output = functional.conv2d(values, weight, bias, layer.stride, layer.padding)
        return Recorded(self, values.detach()[None], None, output)

    def windows(self, values: Tensor) -> Tensor:
        """Return what of values (R, B, ...) meets the kernels at each of L places: (R, B, L, F)."""
        layer = self.convolution
        if layer is None:
            return values[:, :, None]
        return windows_of(values, layer.kernel_size, zero_padding(layer), layer.stride)

    def over_windows(self, kernels: Tensor) -> Tensor:
        """Weights (..., O, ...) in a window's order: (..., O, F)."""
        return kernels if self.convolution is None else as_windows(kernels)

    def over_weights(self, kernels: Tensor) -> Tensor:
        """The opposite, flattened: (..., P) of kernels (..., O, F)."""
        layer = self.convolution
        return kernels.flatten(-2) if layer is None else as_kernels(kernels, layer.kernel_size).flatten(-4)


def places_of(values: Tensor, layer: nn.Conv2d) -> tuple[int, ...]:
    """Rows and columns of a plain convolution's output for values (..., H, W)."""
    return tuple(map(places_along, values.shape[-2:], layer.kernel_size, zero_padding(layer), layer.stride))


@dataclass(frozen=True)
class Recorded:
    """One layer with weights in a recorded forward pass.

    Attributes:
        values: its input (R, B, ...). windows: of it (R, B, L, F); None where they were not needed.
        output: (R, B, O, ...), without the first axis if recorded alone; the loss can be differentiated by it.
    """

    layer: Product
    values: Tensor
    windows: Tensor | None
    output: Tensor


class RowSequence:
    """The stages of a feed-forward network, in order: products, and layers without weights."""

    def __init__(self, stages: list[Product | nn.Module]) -> None:
        self.stages = stages

    def __call__(self, named: Named, images: Tensor) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under named parameters (R, ...)."""
        values = images
        for stage in self.stages:
            values = stage(named, values) if isinstance(stage, Product) else without_weights(stage, values, images)
        return values

    def record(self, named: Named, images: Tensor) -> tuple[Tensor, list[Recorded]]:
        """Logits (R, B, K), and what each layer with weights leaves behind."""
        return self._recorded(images, lambda layer, values: layer.record(named, values), without_weights)

    def record_alone(self, named: Named, images: Tensor) -> tuple[Tensor, list[Recorded]]:
        """Logits (B, K) of a single row's images (B, C, H, W) under named parameters without a leading axis.

        A row alone needs no batched product, and so costs what the plain network costs.
        """
        return self._recorded(images, lambda layer, values: layer.record_alone(named, values), _alone)

    def _recorded(
        self,
        values: Tensor,
        record: Callable[[Product, Tensor], Recorded],
        pass_on: Callable[[nn.Module, Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, list[Recorded]]:
        recorded: list[Recorded] = []
        images = values
        for stage in self.stages:
            if isinstance(stage, Product):
                recorded.append(record(stage, values))
                values = recorded[-1].output
            else:
                values = pass_on(stage, values, images)
        return values, recorded


def without_weights(stage: nn.Module, values: Tensor, images: Tensor) -> Tensor:
    """A stage's output (R, B, ...) of values (R, B, ...), and of the images where it looks at them again."""
    if isinstance(stage, Lightened):
        return stage(values, images)
    if isinstance(stage, FeatureExtractor):
        return stage.rows(values)
    return stage(values.flatten(0, 1)).unflatten(0, values.shape[:2])


def _alone(stage: nn.Module, values: Tensor, images: Tensor) -> Tensor:
    """A stage's output (B, ...) of values (B, ...)."""
    if isinstance(stage, Lightened):
        return stage(values, images)
    return stage.rows(values[None])[0] if isinstance(stage, FeatureExtractor) else stage(values)


def row_sequence(module: nn.Module) -> RowSequence | None:
    """The sequence a module is, or None where it is not a plain chain of layers known here."""
    stages: list[Product | nn.Module] = []
    return RowSequence(_pooled_early(stages)) if _collect(module, "", stages) else None


def _pooled_early(stages: list[Product | nn.Module]) -> list[Product | nn.Module]:
    """Every ReLU after the maximum that followed it: the same to the bit, and so are derivatives, of fewer numbers.

    But where a maximum is over padding alone, of which the library has no derivative.
    """
    for place in range(len(stages) - 1):
        if type(stages[place]) is nn.ReLU and type(stages[place + 1]) is nn.MaxPool2d:
            stages[place : place + 2] = stages[place + 1], stages[place]
    return stages


def _collect(module: nn.Module, prefix: str, stages: list[Product | nn.Module]) -> bool:
    if type(module) in _CHAINS:
        children = module._modules.items()
        return all(child is not None and _collect(child, f"{prefix}{name}.", stages) for name, child in children)
    if type(module) is nn.Linear:
        stages.append(_product(prefix, module, None))
    elif type(module) is nn.Conv2d and is_plain_convolution(module):
        stages.append(_product(prefix, module, module))
    elif type(module) is nn.Sigmoid:
        stages.append(RowSigmoid())
    elif type(module) is nn.ELU:
        stages.append(RowELU(module.alpha))
    elif type(module) in _WEIGHTLESS or isinstance(module, FeatureExtractor) or _is_pooling(module):
        stages.append(module)
    else:
        return False
    return True


def _is_pooling(module: nn.Module) -> bool:
    return type(module) is nn.MaxPool2d and not module.return_indices


def _product(prefix: str, layer: nn.Linear | nn.Conv2d, convolution: nn.Conv2d | None) -> Product:
    return Product(f"{prefix}weight", None if layer.bias is None else f"{prefix}bias", convolution)


_CHAINS = (nn.Sequential, WithInsertedModule, Imprint)
_WEIGHTLESS = (
    nn.Flatten, nn.ReLU, nn.Tanh, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.LeakyReLU, nn.Identity,
    Lightened,
)  # fmt: skip


# --------------------------------------------------------------------------------------
# The gradient of a chain of layers for rows, and its derivative by images and targets, written out.
#
# PyTorch's own derivative of a gradient takes several times as many operations, and small networks spend their time on
# starting these.


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
    """Layer that returns the same numbers in another shape (R, B, ...)."""

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
    """Return what a stage of the network is made of, for such values (R, B, ...)."""
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
