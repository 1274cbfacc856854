"""Layers for rows with weights of their own: windows, convolutions, and the exponential unit.

Some weights no image meets: borders of kernels that lie on nothing but padding, deep in a network of small images.
Their derivatives are zero whatever the image is. Of ResNet-18 at 32 pixels 62% are such.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.batch_norm import in_evaluation_mode
from harness.models.bilinear import Context, multiply
from harness.models.row_operators import Size, is_plain_convolution, zero_padding

Border = tuple[int, int, int, int]


def without_idle_weights(module: nn.Module, image_shape: tuple[int, ...]) -> tuple[nn.Module, Tensor] | None:
    """A copy of a network whose kernels lack these borders, and the places (P',) of its weights among all P.

    None where there are no such borders, or the copy is not the same function: its author may use a layer's weights in
    ways that do not show.

    Args:
        image_shape: (C, H, W) of all images that it will see.
    """
    borders = _borders(module, image_shape)
    if not borders:
        return None
    made, kept, before = copy.deepcopy(module), [], 0
    for name, parameter in module.named_parameters():
        places = torch.arange(before, before + parameter.numel()).reshape(parameter.shape)
        before += parameter.numel()
        layer, _, kind = name.rpartition(".")
        kept.append((inner(places, borders[layer][0]) if kind == "weight" and layer in borders else places).flatten())
    for name, (size, padding) in borders.items():
        _narrow(made.get_submodule(name), size, padding)
    return (made, torch.cat(kept)) if _same(module, made, image_shape) else None


def _borders(module: nn.Module, image_shape: tuple[int, ...]) -> Mapping[str, tuple[Border, Size]]:
    """By convolution: rows above and below and columns left and right of its kernels that meet only padding, and the
    padding that the rest needs; of those that have any."""
    seen: dict[str, list[tuple[Border, Size]]] = {}

    def noting(name: str, layer: nn.Conv2d) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen.setdefault(name, []).append(border_of(given[0].shape[-2:], layer))

        return note

    hooks = [
        layer.register_forward_pre_hook(noting(name, layer))
        for name, layer in module.named_modules()
        if type(layer) is nn.Conv2d and is_plain_convolution(layer)
    ]
    try:
        _run(module, torch.zeros(1, *image_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: calls[0] for name, calls in seen.items() if any(calls[0][0]) and len(set(calls)) == 1}


def border_of(size: Size, layer: nn.Conv2d) -> tuple[Border, Size]:
    """Return for a convolution of images (rows, columns) how much of its kernels' border meets nothing but padding:
    above, below, left and right. Return also the padding, in rows and columns, that the rest needs.

    Of 3x3 kernels on a single pixel eight of nine weights do nothing.
    """
    (above, below, rows), (left, right, columns) = map(
        _along, size, layer.kernel_size, zero_padding(layer), layer.stride
    )
    return (above, below, left, right), (rows, columns)


def _along(size: int, kernel: int, padding: int, stride: int) -> tuple[int, int, int]:
    places = places_along(size, kernel, padding, stride)
    before, after = max(0, padding - (places - 1) * stride), max(0, kernel - size - padding)
    left = padding - before
    same = places_along(size, kernel - before - after, left, stride) == places
    return (before, after, left) if same else (0, 0, padding)


def places_along(size: int, kernel: int, padding: int, stride: int) -> int:
    """Rows, or columns, of what a convolution makes of so many."""
    return (size + 2 * padding - kernel) // stride + 1


def inner(kernels: Tensor, border: Border) -> Tensor:
    """Kernels (..., k, l) without a border."""
    above, below, left, right = border
    rows, columns = kernels.shape[-2:]
    return kernels[..., above : rows - below, left : columns - right]


def _narrow(layer: nn.Module, border: Border, padding: Size) -> None:
    assert isinstance(layer, nn.Conv2d)
    layer.weight = nn.Parameter(inner(layer.weight.detach(), border).clone())
    layer.kernel_size, layer.padding = tuple(layer.weight.shape[-2:]), padding


def _run(module: nn.Module, images: Tensor) -> Tensor:
    # One image has no variance where a layer sees a single value of it.
    with torch.no_grad(), in_evaluation_mode(module):
        return module(images.to(next(module.parameters())))


def _same(module: nn.Module, other: nn.Module, image_shape: tuple[int, ...]) -> bool:
    images = torch.rand(2, *image_shape, generator=torch.Generator().manual_seed(0))
    known = _run(module, images)
    try:
        made = _run(other, images)
    except Exception:  # a user's own code, which may reckon with the shapes that it gave its layers, may raise anything
        return False
    return made.shape == known.shape and torch.allclose(known, made, rtol=1e-3, atol=1e-5)


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
_FEW = 4  # channels


def are_grouped(values: Tensor) -> bool:
    """Return whether rows' convolutions are one grouped convolution, rather than patches times kernels.

    For 32-bit floats on a CPU with AVX-512, where oneDNN's kernels for groups are the faster ones. Without AVX-512 they
    are no faster, and which of them computes a row depends on how many rows there are: its last bits would too. For the
    few channels of pictures they take up to three times as long.

    Args:
        values: (..., C, H, W), of which type, device and channels are looked at.
    """
    single = values.device.type == "cpu" and values.dtype == torch.float32 and values.shape[-3] > _FEW
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
