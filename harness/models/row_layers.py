"""Layers for rows with weights of their own: windows, convolutions, pooling, and the exponential unit."""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.bilinear import Context, multiply
from harness.models.idle_weights import places_along
from harness.models.row_operators import Size, images_of, zero_padding

# What a convolution sees at each place of an image, with channels side by side in memory: copied in long runs.
#
# A product of windows and kernels has its channels side by side again, which is how the next layers take them.


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


# Max pooling that is fast on a CPU.


class RowMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` on images whose channels lie side by side in memory, which the library compares together.

    The results are the same to the bit, where the channels lie apart it goes number by number.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu":
            return _pooled(self, input)
        if input.is_contiguous(memory_format=torch.channels_last):
            return _pooled(self, input)
        return _pooled(self, input.contiguous(memory_format=torch.channels_last)).contiguous()


def _pooled(layer: nn.MaxPool2d, images: Tensor) -> Tensor:
    return functional.max_pool2d(
        images, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode
    )


# The exponential linear unit whose result for a row never depends on the other rows of the batch.


class RowELU(nn.ELU):
    """``nn.ELU``, which rounds the last few elements of a buffer differently from the rest; ``expm1`` does not."""

    def forward(self, input: Tensor) -> Tensor:
        # Not by clamp, which has no derivative at zero, where a dark image with a zero bias stands.
        negative = torch.where(input > 0, 0.0, input)
        return torch.where(input > 0, input, self.alpha * negative.expm1())


# Convolutions of rows with separate kernels as one grouped convolution, and its derivatives of any order.
#
# PyTorch's own derivative of a grouped convolution's derivative loops over the groups one by one. Here the three
# products that derivatives are made of (a convolution, its transpose, its derivative by the kernels) are grouped
# convolutions themselves.

_BACKWARD = torch.ops.aten.convolution_backward


def are_grouped(values: Tensor) -> bool:
    """Whether rows' convolutions are one grouped convolution, rather than patches times kernels.

    For 32-bit floats on a CPU with AVX-512, where oneDNN's kernels for groups are the faster ones. Without AVX-512 they
    are no faster, and which of them computes a row depends on how many rows there are: its last bits would too.
    """
    single = values.device.type == "cpu" and values.dtype == torch.float32
    return single and torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def convolve_rows(images: Tensor, kernels: Tensor, layer: nn.Conv2d) -> Tensor:
    """Images (R, B, C, H, W) convolved with kernels (R, O, C, k, k), without bias: (R, B, O, H', W')."""
    return multiply(images, kernels, GroupedRows(layer.stride, zero_padding(layer)))


@dataclass(frozen=True)
class GroupedRows:
    """Images (R, B, C, H, W) with kernels (R, O, C, k, k): (R, B, O, H', W')."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    kernels_once: bool = False
    first: bool = False

    def product(self, values: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is not None:
            # Handed to the library, it is added first by some kernels and last by others, by how many rows there are.
            return self.product(values, kernels).add_(bias[:, None, :, None, None])
        rows = len(kernels)
        if rows < 4:  # two groups, in some layers three, take another kernel than more do, and round differently
            return self.product(torch.cat([values, values]), torch.cat([kernels, kernels]))[:rows]
        outputs = torch.conv2d(_by_group(values), kernels.flatten(0, 1), None, self.stride, self.padding, (1, 1), rows)
        return _by_row(outputs, rows)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        if values.shape[2] == 1:  # the library is slow for a single channel
            columns = kernels.flatten(2).mT[:, None] @ outer.flatten(3)
            return images_of(columns, values.shape[-2:], kernels.shape[-2:], self.padding, self.stride)
        return _by_row(self._backward(outer, values, kernels, wanted=0), len(kernels))

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return self._backward(outer, values, kernels, wanted=1).view(kernels.shape)

    def _backward(self, outer: Tensor, values: Tensor, kernels: Tensor, wanted: int) -> Tensor:
        mask = [wanted == 0, wanted == 1, False]
        derivatives = _BACKWARD(
            _by_group(outer), _by_group(values), kernels.flatten(0, 1), None, self.stride, self.padding, (1, 1),
            False, (0, 0), len(kernels), mask,
        )  # fmt: skip
        return derivatives[wanted]


def _by_group(values: Tensor) -> Tensor:
    """Values (R, B, C, H, W) as (B, R*C, H, W)."""
    if values.shape[1] == 1:
        return values.reshape(1, -1, *values.shape[3:])
    return values.transpose(0, 1).flatten(1, 2).contiguous()


def _by_row(values: Tensor, rows: int) -> Tensor:
    """Values (B, R*C, H, W) as (R, B, C, H, W)."""
    if len(values) == 1:
        return values.view(rows, 1, -1, *values.shape[2:])
    return values.unflatten(1, (rows, -1)).transpose(0, 1)
