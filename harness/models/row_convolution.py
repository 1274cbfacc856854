"""Convolutions of rows with separate kernels as one grouped convolution, and its derivatives of any order.

PyTorch's own derivative of a grouped convolution's derivative loops over the groups one by one. Here the three
products that derivatives are made of (a convolution, its transpose, its derivative by the kernels) are grouped
convolutions themselves, and each is a derivative of the others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.models.row_operators import images_of, zero_padding
from harness.models.row_sigmoid import Context

_BACKWARD = torch.ops.aten.convolution_backward


def are_fast_grouped(values: Tensor) -> bool:
    """Whether grouped convolutions beat patches times kernels: 32-bit floats on a CPU, where oneDNN has kernels."""
    return values.device.type == "cpu" and values.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def convolve_rows(images: Tensor, kernels: Tensor, layer: nn.Conv2d, kernels_once: bool, first: bool) -> Tensor:
    """Images (R, B, C, H, W) convolved with kernels (R, O, C, k, k), without bias: (R, B, O, H', W').

    ``kernels_once``: see :class:`~harness.models.row_operators.MatrixProduct`. ``first``: with it, in the pass that
    creates a graph, the derivative by the images is not needed, as nothing lies before them.
    """
    return _Convolution.apply(images, kernels, _Geometry(layer.stride, zero_padding(layer), kernels_once, first))


@dataclass(frozen=True)
class _Geometry:
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    kernels_once: bool
    first: bool

    def convolved(self, images: Tensor, kernels: Tensor) -> Tensor:
        rows = len(kernels)
        if rows == 2:  # two groups take another kernel than more do, and round differently
            return self.convolved(torch.cat([images, images]), torch.cat([kernels, kernels]))[:2]
        outputs = torch.conv2d(_by_group(images), kernels.flatten(0, 1), None, self.stride, self.padding, groups=rows)
        return _by_row(outputs, rows)

    def backward(self, gradient: Tensor, images: Tensor, kernels: Tensor, wanted: int) -> Tensor:
        """The derivative by the images (``wanted`` 0) or by the kernels (1)."""
        rows = len(kernels)
        if wanted == 0 and images.shape[2] == 1:  # the library is slow for a single channel
            columns = kernels.flatten(2).mT[:, None] @ gradient.flatten(3)
            return images_of(columns, images.shape[-2:], kernels.shape[-2:], self.padding, self.stride)
        mask = [wanted == 0, wanted == 1, False]
        derivatives = _BACKWARD(
            _by_group(gradient), _by_group(images), kernels.flatten(0, 1), None, self.stride, self.padding, (1, 1),
            False, (0, 0), rows, mask,
        )  # fmt: skip
        return _by_row(derivatives[0], rows) if wanted == 0 else derivatives[1].unflatten(0, kernels.shape[:2])


def _by_group(values: Tensor) -> Tensor:
    """Values (R, B, C, H, W) as (B, R*C, H, W)."""
    return values.transpose(0, 1).flatten(1, 2).contiguous()


def _by_row(values: Tensor, rows: int) -> Tensor:
    """Values (B, R*C, H, W) as (R, B, C, H, W)."""
    return values.unflatten(1, (rows, -1)).transpose(0, 1)


class _Convolution(torch.autograd.Function):
    """Images (R, B, C, H, W) and kernels (R, O, C, k, k) to outputs (R, B, O, H', W')."""

    @staticmethod
    def forward(ctx: Context, images: Tensor, kernels: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(images, kernels)
        ctx.geometry = geometry
        return geometry.convolved(images, kernels)

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (images, kernels), geometry = ctx.saved_tensors, ctx.geometry
        for_images = for_kernels = None
        creates_graph = torch.is_grad_enabled()
        if ctx.needs_input_grad[0] and not (geometry.first and creates_graph):
            fixed = kernels.detach() if geometry.kernels_once else kernels
            for_images = _Transposed.apply(gradient, fixed, images.detach(), geometry)
        if ctx.needs_input_grad[1] and (creates_graph or not geometry.kernels_once):
            for_kernels = _KernelGradient.apply(gradient, images, kernels.detach(), geometry)
        return for_images, for_kernels, None


class _Transposed(torch.autograd.Function):
    """Derivatives (R, B, C, H, W) by the images, from those by the outputs (R, B, O, H', W') and the kernels."""

    @staticmethod
    def forward(ctx: Context, gradient: Tensor, kernels: Tensor, like: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(gradient, kernels)
        ctx.geometry = geometry
        return geometry.backward(gradient, like, kernels, 0)

    @staticmethod
    def backward(ctx: Context, outer: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        gradient, kernels = ctx.saved_tensors
        for_gradient = for_kernels = None
        if ctx.needs_input_grad[0]:
            for_gradient = _Convolution.apply(outer, kernels, ctx.geometry)
        if ctx.needs_input_grad[1]:
            for_kernels = _KernelGradient.apply(gradient, outer, kernels.detach(), ctx.geometry)
        return for_gradient, for_kernels, None, None


class _KernelGradient(torch.autograd.Function):
    """Derivatives (R, O, C, k, k) by the kernels, from those by the outputs (R, B, O, H', W') and the images."""

    @staticmethod
    def forward(ctx: Context, gradient: Tensor, images: Tensor, like: Tensor, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(gradient, images)
        ctx.geometry = geometry
        return geometry.backward(gradient, images, like, 1)

    @staticmethod
    def backward(ctx: Context, outer: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        gradient, images = ctx.saved_tensors
        for_gradient = for_images = None
        if ctx.needs_input_grad[0]:
            for_gradient = _Convolution.apply(images, outer, ctx.geometry)
        if ctx.needs_input_grad[1]:
            for_images = _Transposed.apply(gradient, outer, images.detach(), ctx.geometry)
        return for_gradient, for_images, None, None
