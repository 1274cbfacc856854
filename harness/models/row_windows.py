"""What a convolution sees at each place of an image, with channels side by side in memory: copied in long runs.

A product of windows and kernels has its channels side by side again, which is how the next layers take them.
"""

from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from harness.models.idle_weights import places_along
from harness.models.row_operators import Size
from harness.models.row_sigmoid import Context


def windows_of(images: Tensor, kernel: Size, padding: Size, stride: Size) -> Tensor:
    """Windows (..., L, k*k*C) of images (..., C, H, W)."""
    return _Windows.apply(images, kernel, padding, stride)


def as_windows(kernels: Tensor) -> Tensor:
    """Kernels (..., C, k, k) in a window's order: (..., k*k*C)."""
    return kernels.movedim(-3, -1).flatten(-3)


def as_kernels(windows: Tensor, kernel: Size) -> Tensor:
    """The opposite of :func:`as_windows`, for kernels of this size."""
    return windows.unflatten(-1, (*kernel, -1)).movedim(-1, -3)


class _Windows(torch.autograd.Function):
    """Windows of images; differentiable any number of times, as its transpose is."""

    @staticmethod
    def forward(ctx: Context, images: Tensor, kernel: Size, padding: Size, stride: Size) -> Tensor:
        ctx.geometry, ctx.size = (kernel, padding, stride), tuple(images.shape[-2:])
        rows, columns = images.dim() - 3, images.dim() - 2
        beside = images.movedim(-3, -1)
        if any(padding):
            beside = functional.pad(beside, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        windows = beside.contiguous().unfold(rows, kernel[0], stride[0]).unfold(columns, kernel[1], stride[1])
        return windows.movedim(-3, -1).flatten(-3).flatten(-3, -2)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Summed.apply(gradient, ctx.size, *ctx.geometry), None, None, None


class _Summed(torch.autograd.Function):
    """Images (..., C, H, W) that sum up windows (..., L, k*k*C)."""

    @staticmethod
    def forward(ctx: Context, windows: Tensor, size: Size, kernel: Size, padding: Size, stride: Size) -> Tensor:
        ctx.geometry = kernel, padding, stride
        height, width = (one + 2 * more for one, more in zip(size, padding, strict=True))
        rows, columns = map(places_along, size, kernel, padding, stride)
        parts = windows.unflatten(-1, (*kernel, -1)).unflatten(-4, (rows, columns))
        images = windows.new_zeros(*windows.shape[:-2], height, width, parts.shape[-1])
        for first, second in product(*map(range, kernel)):
            down, across = (
                slice(begin, begin + step * count, step)
                for begin, step, count in zip((first, second), stride, (rows, columns), strict=True)
            )
            images[..., down, across, :] += parts[..., first, second, :]
        inner = images[..., padding[0] : height - padding[0], padding[1] : width - padding[1], :]
        return inner.movedim(-1, -3)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _Windows.apply(gradient, *ctx.geometry), None, None, None, None
