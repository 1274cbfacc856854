"""Drop-in layers that are fast, and bit-reproducible, when every row of a batch has its own weights.

A convolution whose weights differ per row becomes a grouped convolution, whose double backward loops over the
groups one by one. Written as patches times a matrix it is one batched matrix product instead.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional


class PatchConv2d(nn.Module):
    """A zero-padded 2-D convolution as patch extraction followed by a matrix product.

    Shares the parameter names of ``nn.Conv2d``; input (B, C, H, W), output (B, O, H', W').
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride, self.padding, self.kernel = convolution.stride, convolution.padding, convolution.kernel_size

    def forward(self, images: Tensor) -> Tensor:
        batch, _, height, width = images.shape
        patches = functional.unfold(images, self.kernel, padding=self.padding, stride=self.stride)
        patches = patches.transpose(0, 1).reshape(patches.shape[1], -1)
        kernels = self.weight.flatten(1)
        outputs = kernels @ patches if self.bias is None else torch.addmm(self.bias[:, None], kernels, patches)
        rows, columns = (
            (size + 2 * pad - kernel) // stride + 1
            for size, pad, kernel, stride in zip((height, width), self.padding, self.kernel, self.stride, strict=True)
        )
        return outputs.reshape(-1, batch, rows, columns).transpose(0, 1)


class _Sigmoid(torch.autograd.Function):
    """The logistic function through ``exp``.

    ``torch.sigmoid`` rounds the last few elements of a buffer differently from the rest, so its result for one row
    depends on how many rows share the buffer; ``exp`` does not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.neg().exp().add(1).reciprocal()

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return gradient * (output - output * output)


class RowSigmoid(nn.Module):
    """``nn.Sigmoid`` whose result for a row never depends on the other rows of the batch."""

    def forward(self, values: Tensor) -> Tensor:
        return _Sigmoid.apply(values)


def _is_plain(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def with_row_operators(module: nn.Module) -> nn.Module:
    """A copy of ``module`` with its plain convolutions and sigmoids replaced by the row-wise layers."""
    clone = copy.deepcopy(module)
    for parent in list(clone.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Conv2d and _is_plain(layer):
                setattr(parent, name, PatchConv2d(layer))
            elif type(layer) is nn.Sigmoid:
                setattr(parent, name, RowSigmoid())
    return clone
