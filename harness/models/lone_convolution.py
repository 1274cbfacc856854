"""A convolution of a network that is evaluated for one row at a time, with fast derivatives of derivatives.

On a CPU a convolution's own second derivative takes kernels as large as its images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.models.bilinear import multiply
from harness.models.differentiated_once import passes
from harness.models.idle_weights import border_of, inner, places_along
from harness.models.onednn import is_possible, transposed_product
from harness.models.row_operators import Size, images_of, patches_of

_BACKWARD = torch.ops.aten.convolution_backward
# The convolution's own routines read such kernels several times, measured on layers of ResNet-18.
_FEW_PLACES, _LARGE_KERNELS = range(4, 17), 2**18


@dataclass(frozen=True)
class _Convolution:
    """Images (B, C, H, W) with kernels (O, C, k, k)."""

    stride: Size
    padding: Size
    kernels_once: bool
    first: bool

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        return torch.conv2d(values, kernels, None, self.stride, self.padding)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return self._backward(outer, values, kernels, [True, False, False])[0]

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return self._backward(outer, values, kernels, [False, True, False])[1]

    def _backward(self, outer: Tensor, values: Tensor, kernels: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        return _BACKWARD(outer, values, kernels, None, self.stride, self.padding, (1, 1), False, (0, 0), 1, mask)

    def places(self, size: Size, kernel: Size) -> Size:
        """Rows and columns of the output for images of this size."""
        return tuple(map(places_along, size, kernel, self.padding, self.stride))


@dataclass(frozen=True)
class _AtFewPlaces(_Convolution):
    """The same as products of patches and kernels: fast where large kernels have few places."""

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        made = transposed_product(self._patches(values, kernels), kernels.flatten(1))
        places = self.places(values.shape[-2:], kernels.shape[-2:])
        return made.unflatten(0, (len(values), -1)).mT.unflatten(-1, places).contiguous()

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        patches = transposed_product(_by_place(outer.flatten(2)), kernels.flatten(1).mT)
        patches = patches.unflatten(0, (len(values), -1)).mT
        return images_of(patches, values.shape[-2:], kernels.shape[-2:], self.padding, self.stride)

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        made = transposed_product(_by_place(outer.flatten(2)).mT, self._patches(values, kernels).mT)
        return made.reshape(kernels.shape)

    def _patches(self, values: Tensor, kernels: Tensor) -> Tensor:
        return _by_place(patches_of(values, kernels.shape[-2:], self.padding, self.stride))


def _by_place(values: Tensor) -> Tensor:
    """Values (B, F, L) as (B*L, F)."""
    return values.mT.flatten(0, 1)


class LoneConv2d(nn.Conv2d):
    """A plain convolution."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4:
            return super().forward(input)
        border, padding = border_of(input.shape[-2:], self)
        kernels = inner(self.weight, border) if any(border) else self.weight
        geometry = _Convolution(self.stride, padding, *passes(input))
        rows, columns = geometry.places(input.shape[-2:], kernels.shape[-2:])
        if len(input) * rows * columns in _FEW_PLACES and kernels.numel() >= _LARGE_KERNELS and is_possible(input):
            geometry = _AtFewPlaces(self.stride, padding, *passes(input))
        product = multiply(input, kernels, geometry)
        return product if self.bias is None else product + self.bias[:, None, None]
