"""The logistic function whose result for a row never depends on the other rows of the batch."""

from typing import Any

import torch
from torch import Tensor, nn

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
