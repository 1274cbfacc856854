"""Convolutions of rows with separate kernels as one grouped convolution, and its derivatives of any order.

PyTorch's own derivative of a grouped convolution's derivative loops over the groups one by one. Here the three
products that derivatives are made of (a convolution, its transpose, its derivative by the kernels) are grouped
convolutions themselves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.models.bilinear import multiply
from harness.models.row_operators import images_of, zero_padding

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
