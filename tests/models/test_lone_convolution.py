"""A convolution and its derivatives, however small its images are, against PyTorch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from harness.models import lone_rows as lone_convolution
from harness.models.lone_rows import LoneConv2d, _AtFewPlaces
from harness.models.row_layers import border_of


def layer(size: tuple[int, int], kernel: int, stride: int, padding: int, inputs: int = 3) -> tuple[Tensor, nn.Conv2d]:
    random = torch.Generator().manual_seed(0)
    made = nn.Conv2d(inputs, 4, kernel, stride, padding)
    return torch.randn(2, inputs, *size, generator=random), made


def alone(convolution: nn.Conv2d) -> nn.Conv2d:
    convolution.__class__ = LoneConv2d
    return convolution


def derivatives(convolution: nn.Conv2d, images: Tensor) -> list[Tensor]:
    """The output, the weights' gradient, and the derivative of its length by the images."""
    leaf = images.clone().requires_grad_()
    made = convolution(leaf)
    slopes = torch.autograd.grad(made.tanh().square().sum(), list(convolution.parameters()), create_graph=True)
    length = sum(slope.square().sum() for slope in slopes)
    return [made.detach(), *(slope.detach() for slope in slopes), *torch.autograd.grad(length, leaf)]


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "border"),
    [
        ((1, 1), 3, 1, 1, (1, 1, 1, 1)),
        ((1, 1), 7, 2, 3, (3, 3, 3, 3)),
        ((2, 2), 3, 2, 1, (1, 0, 1, 0)),
        ((2, 2), 3, 1, 1, (0, 0, 0, 0)),
        ((2, 2), 5, 1, 2, (1, 1, 1, 1)),
        ((1, 4), 3, 1, 1, (1, 1, 0, 0)),
        ((3, 3), 3, 2, 2, (0, 0, 0, 0)),
        ((8, 8), 3, 1, 1, (0, 0, 0, 0)),
        ((2, 3), 2, 1, 0, (0, 0, 0, 0)),
        ((1, 1), 2, 1, 2, (0, 0, 0, 0)),
    ],
)
def test_what_meets_only_padding_is_spared(
    size: tuple[int, int], kernel: int, stride: int, padding: int, border: tuple[int, ...], few: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    images, own = layer(size, kernel, stride, padding)
    assert border_of(size, own)[0] == border
    truth = derivatives(own, images)
    if few:
        monkeypatch.setattr(lone_convolution, "_FEW_PLACES", range(1, 10_000))
        monkeypatch.setattr(lone_convolution, "_LARGE_KERNELS", 0)
    for made, one in zip(derivatives(alone(own), images), truth, strict=True):
        torch.testing.assert_close(made, one, atol=1e-4, rtol=1e-4)


def test_large_kernels_at_few_places_are_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last layers but one of a ResNet-18 at 32 pixels; with oneDNN, whose sums are in another order.

    The truth is of twice the precision: PyTorch's own sums round ten times as far without AVX-512.
    """
    called: list[int] = []
    monkeypatch.setattr(_AtFewPlaces, "product", lambda self, *given: called.append(1) or _PRODUCT(self, *given))
    images, own = layer((2, 2), 3, 1, 1, inputs=2**13)
    truth = derivatives(copy.deepcopy(own).double(), images.double())
    for made, one in zip(derivatives(alone(own), images), truth, strict=True):
        assert (made - one).norm() <= 3e-6 * one.norm()
    assert called
    called.clear()
    derivatives(own, images.repeat(9, 1, 1, 1))
    assert not called


_PRODUCT = _AtFewPlaces.product
