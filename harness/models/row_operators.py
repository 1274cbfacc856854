"""Drop-in layers that are fast, and bit-reproducible, when every row of a batch has its own weights.

A convolution whose weights differ per row becomes a grouped convolution, whose double backward loops over the
groups one by one. Written as patches times a matrix it is one batched matrix product instead.
"""

import copy
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.bilinear import Context, RowSigmoid
from harness.models.feature_extractor import FeatureExtractor

Size = tuple[int, ...]


#: Of a view: fewer columns are a short line. Of a sum of views: fewer are short.
_SHORT, _SHORT_SUM = 10, 24


@lru_cache(maxsize=64)
def _places(size: Size, kernel: Size, stride: Size, device: torch.device) -> Tensor:
    """Return where in a flat image of a ``size`` each number of its patches (k*k*L,) stands."""
    rows, columns = (torch.arange(one, device=device) for one in size)
    down, across = rows.unfold(0, kernel[0], stride[0]).mT, columns.unfold(0, kernel[1], stride[1]).mT
    return (down[:, None, :, None] * size[1] + across[None, :, None, :]).flatten()


def _summed_views(parts: Tensor, height: int, width: int, stride: Size) -> Tensor:
    """Images (N, height, width) that sum up what each place of a kernel sees of them, (N, k, k, H', W')."""
    images = parts.new_zeros(len(parts), height, width)
    _, *kernel, down, across = parts.shape
    for row, column in product(*map(range, kernel)):
        rows = slice(row, row + stride[0] * down, stride[0])
        images[:, rows, column : column + across] += parts[:, row, column]
    return images


class _Patches(torch.autograd.Function):
    """Patches (..., C*k*k, L) of images (..., C, H, W).

    Copied from strided views: ``functional.unfold`` reads pixel by pixel, and starts a team of threads for every image.
    Where a view's lines are short, it costs less to name the place of every pixel.
    """

    @staticmethod
    def forward(images: Tensor, kernel: Size, padding: Size, stride: Size) -> Tensor:
        *lead, channels, _, _ = images.shape
        rows, columns = len(lead) + 1, len(lead) + 2
        if any(padding):
            images = functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
        if (images.shape[-1] - kernel[1]) // stride[1] < _SHORT:
            places = _places(tuple(images.shape[-2:]), kernel, stride, images.device)
            patches = images.flatten(-2).gather(-1, places.expand(*images.shape[:-2], -1))
        else:
            windows = images.unfold(rows, kernel[0], stride[0]).unfold(columns, kernel[1], stride[1])
            patches = windows.movedim((-2, -1), (rows, columns))
        return patches.reshape(*lead, channels * kernel[0] * kernel[1], -1)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Size, Size, Size], output: Tensor) -> None:
        images, *ctx.geometry = inputs
        ctx.size = tuple(images.shape[-2:])

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Images.apply(gradient, ctx.size, *ctx.geometry), None, None, None

    @staticmethod
    def vmap(info: object, in_dims: tuple[int, ...], images: Tensor, *geometry: Size) -> tuple[Tensor, int]:
        return _Patches.apply(images.movedim(in_dims[0], 0), *geometry), 0


class _Images(torch.autograd.Function):
    """Images (..., C, H, W) that sum up patches (..., C*k*k, L): the transpose of :class:`_Patches`.

    All ways add a pixel's numbers in the order of the kernel's places, and so give the bits of ``functional.fold``. On
    a CPU that takes about twice the time of the others. On a GPU, additions by place have no fixed order.
    """

    @staticmethod
    def forward(patches: Tensor, size: Size, kernel: Size, padding: Size, stride: Size) -> Tensor:
        *lead, rows, count = patches.shape
        channels = rows // (kernel[0] * kernel[1])
        if patches.device.type != "cpu":
            images = functional.fold(patches.reshape(1, -1, count), size, kernel, padding=padding, stride=stride)
            return images.reshape(*lead, channels, *size)
        height, width = (one + 2 * more for one, more in zip(size, padding, strict=True))
        across = (width - kernel[1]) // stride[1] + 1
        if stride[1] == 1 and across >= _SHORT_SUM:
            images = _summed_views(patches.reshape(-1, *kernel, count // across, across), height, width, stride)
        else:
            places = _places((height, width), kernel, stride, patches.device)
            numbers = patches.reshape(-1, len(places))
            images = patches.new_zeros(len(numbers), height * width)
            images = images.scatter_add_(1, places.expand_as(numbers), numbers).view(-1, height, width)
        inner = images[:, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
        return inner.contiguous().view(*lead, channels, *size)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Size, Size, Size, Size], output: Tensor) -> None:
        ctx.geometry = inputs[2:]

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _Patches.apply(gradient, *ctx.geometry), None, None, None, None

    @staticmethod
    def vmap(info: object, in_dims: tuple[int, ...], patches: Tensor, *geometry: Size) -> tuple[Tensor, int]:
        return _Images.apply(patches.movedim(in_dims[0], 0), *geometry), 0


def patches_of(images: Tensor, kernel: Size, padding: Size, stride: Size) -> Tensor:
    """Patches (..., C*k*k, L) that a convolution sees of images (..., C, H, W)."""
    return _Patches.apply(images, kernel, padding, stride)


def images_of(patches: Tensor, size: Size, kernel: Size, padding: Size, stride: Size) -> Tensor:
    """Images (..., C, H, W) that sum up patches (..., C*k*k, L): the transpose of :func:`patches_of`."""
    return _Images.apply(patches, size, kernel, padding, stride)


class MatrixProduct(torch.autograd.Function):
    """Batched product (R, O, L) of matrices (R, O, F) and (R, F, L).

    Autograd's own derivative of a product comes out transposed, and every later use then pays for a copy.
    """

    @staticmethod
    def forward(ctx: Context, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        for_left = _LeftGradient.apply(gradient, right) if ctx.needs_input_grad[0] else None
        for_right = MatrixProduct.apply(left.mT, gradient) if ctx.needs_input_grad[1] else None
        return for_left, for_right


class _LeftGradient(torch.autograd.Function):
    """Batched product (R, O, F) of gradients (R, O, L) and transposed matrices (R, F, L)."""

    @staticmethod
    def forward(ctx: Context, gradient: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, right)
        return gradient @ right.mT

    @staticmethod
    def backward(ctx: Context, outer: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gradient, right = ctx.saved_tensors
        for_gradient = MatrixProduct.apply(outer, right) if ctx.needs_input_grad[0] else None
        for_right = MatrixProduct.apply(outer.mT, gradient) if ctx.needs_input_grad[1] else None
        return for_gradient, for_right


class PatchConv2d(nn.Module):
    """A zero-padded 2-D convolution as patch extraction followed by a matrix product.

    Shares the parameter names of ``nn.Conv2d``; input (B, C, H, W), output (B, O, H', W').
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride, self.padding, self.kernel = convolution.stride, zero_padding(convolution), convolution.kernel_size

    def forward(self, images: Tensor) -> Tensor:
        batch, _, height, width = images.shape
        patches = _Patches.apply(images, self.kernel, self.padding, self.stride)
        patches = patches.transpose(0, 1).reshape(patches.shape[1], -1)
        kernels = self.weight.flatten(1)
        outputs = kernels @ patches if self.bias is None else torch.addmm(self.bias[:, None], kernels, patches)
        rows, columns = (
            (size + 2 * pad - kernel) // stride + 1
            for size, pad, kernel, stride in zip((height, width), self.padding, self.kernel, self.stride, strict=True)
        )
        return outputs.reshape(-1, batch, rows, columns).transpose(0, 1)


def is_plain_convolution(layer: nn.Conv2d) -> bool:
    """Return whether a convolution is nothing but zero-padded patches times a matrix."""
    return (
        layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def zero_padding(layer: nn.Conv2d) -> Size:
    """The padding of a plain convolution, in numbers."""
    assert not isinstance(layer.padding, str)
    return layer.padding


def with_row_operators(module: nn.Module) -> nn.Module:
    """A copy of ``module`` with its plain convolutions and sigmoids replaced by the row-wise layers.

    A feature extractor's layers have the same weights in every row and stay as they are.
    """
    clone = copy.deepcopy(module)
    _replace_layers(clone)
    return clone


def _replace_layers(parent: nn.Module) -> None:
    for name, layer in list(parent._modules.items()):
        if type(layer) is nn.Conv2d and is_plain_convolution(layer):
            setattr(parent, name, PatchConv2d(layer))
        elif type(layer) is nn.Sigmoid:
            setattr(parent, name, RowSigmoid())
        elif layer is not None and not isinstance(layer, FeatureExtractor):
            _replace_layers(layer)
