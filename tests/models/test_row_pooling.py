"""Pooling with channels side by side equals the library's, its derivative and the derivative of that, to the bit."""

import copy

import pytest
import torch
from torch import Tensor, nn

from harness.models.row_layers import RowMaxPool2d


def derivatives(layer: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """Output, derivative of a nonlinear function of it, and the derivative of that one's length."""
    leaf = images.clone().requires_grad_()
    output = layer(leaf)
    weights = torch.linspace(-1, 2, output.numel()).reshape(output.shape)
    (first,) = torch.autograd.grad((output.square() * weights).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), leaf)
    return output.detach(), first.detach(), second


@pytest.mark.parametrize(
    "library", [nn.MaxPool2d(2), nn.MaxPool2d((3, 2)), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, ceil_mode=True)]
)
@pytest.mark.parametrize("values", ["random", "ties", "rectified", "transposed", "channels last"])
def test_it_is_the_librarys(library: nn.MaxPool2d, values: str) -> None:
    images = torch.randn(3, 4, 11, 13, generator=torch.Generator().manual_seed(1))
    if values == "ties":
        images = images.round()
    elif values == "rectified":
        images = images.relu()
    elif values == "transposed":
        images = images.transpose(0, 1)
    elif values == "channels last":
        images = images.contiguous(memory_format=torch.channels_last)
    own = copy.copy(library)
    own.__class__ = RowMaxPool2d
    for ours, theirs in zip(derivatives(own, images), derivatives(library, images), strict=True):
        assert torch.equal(ours, theirs)
