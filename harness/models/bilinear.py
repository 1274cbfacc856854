"""Products of values and kernels with derivatives of any order that are such products again.

A convolution and a linear layer are linear in their input and in their kernels. The derivative by the input is linear
in the outer derivative and the kernels, that by the kernels in the outer derivative and the input, and each of the
three is a derivative of the others. PyTorch's own second derivatives loop over groups, or take other, slow kernels.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

# Matrix products of rows that have matrices of their own.


class LinearRows:
    """Values (R, B, F) with kernels (R, O, F): (R, B, O)."""

    def product(self, values: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return torch.bmm(values, kernels.mT)
        return torch.baddbmm(bias[:, None], values, kernels.mT)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return torch.bmm(outer, kernels)

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return torch.bmm(outer.mT, values)


class ColumnRows:
    """Columns (R, B, F, L) with kernels (R, O, ...) of F numbers: (R, B, O, L)."""

    def product(self, values: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
        made = kernels.flatten(2)[:, None] @ values
        return made if bias is None else made.add_(bias[:, None, :, None])

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return kernels.flatten(2).mT[:, None] @ outer

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return (outer @ values.mT).sum(1)


# The logistic function whose result for a row never depends on the other rows of the batch.

#: What autograd hands its functions; PyTorch's declared type lacks what they save and keep on it.
Context = Any


def logistic(values: Tensor) -> Tensor:
    """The logistic function of values, in memory of its own."""
    return values.neg().exp_().add_(1).reciprocal_()


def logistic_slope(output: Tensor) -> Tensor:
    """Its slope where its value is ``output``."""
    return torch.addcmul(output, output, output, value=-1)


class _Sigmoid(torch.autograd.Function):
    """The logistic function through ``exp``.

    ``torch.sigmoid`` rounds the last few elements of a buffer differently from the rest, so its result for one row
    depends on how many rows share the buffer; ``exp`` does not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return logistic(values)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        return _SigmoidGradient.apply(gradient, *ctx.saved_tensors)


class _SigmoidGradient(torch.autograd.Function):
    """``gradient`` times the slope of the logistic function whose value is ``output``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, output: Tensor) -> Tensor:
        return gradient * logistic_slope(output)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Context, outer: Tensor) -> tuple[Tensor, Tensor]:
        gradient, output = ctx.saved_tensors
        by_output = outer * gradient
        return _SigmoidGradient.apply(outer, output), torch.addcmul(by_output, by_output, output, value=-2)


class RowSigmoid(nn.Module):
    """``nn.Sigmoid`` whose result for a row never depends on the other rows of the batch."""

    def forward(self, values: Tensor) -> Tensor:
        return _Sigmoid.apply(values)


class Products(Protocol):
    """One product, and those that are its derivatives."""

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        """The output."""
        ...

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        """The derivative by the values, of which only the shape is looked at."""
        ...

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        """The derivative by the kernels, of which only the shape is looked at."""
        ...


class Bilinear(Products, Protocol):
    """One product, those that are its derivatives, and how much of its derivatives anybody wants.

    Attributes:
        kernels_once: the derivative by the kernels is taken in one pass that creates a graph and never again: attacks
            differentiate the weights' gradient by the images only, and the rest would serve nobody.
        first: with it, in the pass that creates a graph, the derivative by the values is not needed, as nothing lies
            before them.
    """

    @property
    def kernels_once(self) -> bool: ...
    @property
    def first(self) -> bool: ...


def multiply(values: Tensor, kernels: Tensor, bilinear: Bilinear) -> Tensor:
    """The product of values and kernels, differentiable as often as wanted."""
    return _Product.apply(values, kernels, bilinear)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, values: Tensor, kernels: Tensor, bilinear: Bilinear) -> Tensor:
        ctx.save_for_backward(values, kernels)
        ctx.bilinear = bilinear
        return bilinear.product(values, kernels)

    @staticmethod
    def backward(ctx: Context, outer: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (values, kernels), bilinear = ctx.saved_tensors, ctx.bilinear
        for_values = for_kernels = None
        creates_graph = torch.is_grad_enabled()
        if ctx.needs_input_grad[0] and not (bilinear.first and creates_graph):
            fixed = kernels.detach() if bilinear.kernels_once else kernels
            for_values = _ByValues.apply(outer, fixed, values.detach(), bilinear)
        if ctx.needs_input_grad[1] and (creates_graph or not bilinear.kernels_once):
            for_kernels = _ByKernels.apply(outer, values, kernels.detach(), bilinear)
        return for_values, for_kernels, None


class _ByValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, outer: Tensor, kernels: Tensor, like: Tensor, bilinear: Bilinear) -> Tensor:
        ctx.save_for_backward(outer, kernels)
        ctx.bilinear = bilinear
        return bilinear.by_values(outer, like, kernels)

    @staticmethod
    def backward(ctx: Context, further: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        outer, kernels = ctx.saved_tensors
        for_outer = for_kernels = None
        if ctx.needs_input_grad[0]:
            for_outer = _Product.apply(further, kernels, ctx.bilinear)
        if ctx.needs_input_grad[1]:
            for_kernels = _ByKernels.apply(outer, further, kernels.detach(), ctx.bilinear)
        return for_outer, for_kernels, None, None


class _ByKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, outer: Tensor, values: Tensor, like: Tensor, bilinear: Bilinear) -> Tensor:
        ctx.save_for_backward(outer, values)
        ctx.bilinear = bilinear
        return bilinear.by_kernels(outer, values, like)

    @staticmethod
    def backward(ctx: Context, further: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        outer, values = ctx.saved_tensors
        for_outer = for_values = None
        if ctx.needs_input_grad[0]:
            for_outer = _Product.apply(values, further, ctx.bilinear)
        if ctx.needs_input_grad[1]:
            for_values = _ByValues.apply(outer, further, values.detach(), ctx.bilinear)
        return for_outer, for_values, None, None
