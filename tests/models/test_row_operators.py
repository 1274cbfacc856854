"""The row-wise layers compute what PyTorch's own layers compute, up to the second derivative."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.bilinear import RowSigmoid
from harness.models.row_operators import PatchConv2d, Size, images_of, with_row_operators


def derivatives(layer: nn.Module, values: Tensor) -> list[Tensor]:
    """Output, first derivatives, and derivatives of a function of those first derivatives."""
    leaf = values.clone().requires_grad_(True)
    unknowns = [leaf, *layer.parameters()]
    output = layer(leaf)
    first = torch.autograd.grad(output.pow(3).sum(), unknowns, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), unknowns)
    return [output, *first, *second]


def assert_equal_derivatives(ours: nn.Module, theirs: nn.Module, values: Tensor) -> None:
    for left, right in zip(derivatives(ours, values), derivatives(theirs, values), strict=True):
        assert torch.allclose(left, right, rtol=1e-10, atol=1e-12)


def random_images(channels: int, height: int = 9, width: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, channels, height, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("channels", "settings"),
    [
        (1, {"kernel_size": 5, "padding": 2, "stride": 2}),
        (3, {"kernel_size": 3, "bias": False}),
        (2, {"kernel_size": (3, 2), "padding": (1, 0), "stride": (1, 2)}),
        (2, {"kernel_size": 1}),
    ],
)
def test_patch_convolution(channels: int, settings: dict) -> None:
    torch.manual_seed(1)
    convolution = nn.Conv2d(channels, 4, **settings).double()
    patched = PatchConv2d(convolution)
    assert dict(patched.named_parameters()).keys() == dict(convolution.named_parameters()).keys()
    assert_equal_derivatives(patched, convolution, random_images(channels))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "kernel", "padding", "stride"),
    [
        ((7, 7), (5, 5), (2, 2), (1, 1)),
        ((14, 14), (5, 5), (2, 2), (2, 2)),
        ((9, 8), (3, 2), (1, 0), (1, 2)),
        ((8, 9), (3, 3), (0, 2), (2, 1)),
        ((4, 4), (3, 3), (1, 1), (1, 1)),
        ((1, 1), (1, 1), (0, 0), (1, 1)),
        ((8, 8), (4, 4), (0, 0), (4, 4)),
        ((9, 9), (2, 2), (0, 0), (3, 3)),  # pixels that no patch has
        ((32, 32), (3, 3), (1, 1), (1, 1)),  # long lines
        ((6, 30), (3, 5), (1, 2), (2, 1)),
        ((30, 33), (7, 7), (3, 3), (2, 2)),
    ],
)
def test_summed_patches_have_the_bits_of_fold(
    size: Size, kernel: Size, padding: Size, stride: Size, dtype: torch.dtype
) -> None:
    columns = functional.unfold(torch.zeros(1, 1, *size), kernel, padding=padding, stride=stride).shape[-1]
    generator = torch.Generator().manual_seed(0)
    patches = torch.randn(3, 2, 4 * kernel[0] * kernel[1], columns, generator=generator, dtype=dtype)
    patches[0, 0] *= -0.0
    patches[1, 0, 0, 0] = torch.inf
    known = functional.fold(patches.flatten(0, 1), size, kernel, padding=padding, stride=stride).view(3, 2, 4, *size)
    bits = torch.int32 if dtype is torch.float32 else torch.int64
    for given in (patches, patches.mT.contiguous().mT, patches.repeat(1, 1, 2, 1)[:, :, : patches.shape[2]]):
        made = images_of(given, size, kernel, padding, stride)
        assert made.is_contiguous()
        assert torch.equal(made.view(bits), known.view(bits))


def test_sigmoid() -> None:
    values = torch.cat([random_images(2).flatten(), torch.tensor([-700.0, -30.0, 0.0, 30.0, 700.0]).double()])
    assert_equal_derivatives(RowSigmoid(), nn.Sigmoid(), values)


@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_a_saturated_sigmoid_stays_finite(value: float) -> None:
    assert all(each.isfinite().all() for each in derivatives(RowSigmoid(), torch.tensor([value])))


@pytest.mark.parametrize(
    ("layer", "replacement"),
    [
        (nn.Conv2d(2, 4, 3), PatchConv2d),
        (nn.Sigmoid(), RowSigmoid),
        (nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d),
        (nn.Conv2d(2, 4, 3, dilation=2), nn.Conv2d),
        (nn.Conv2d(2, 4, 3, padding="same"), nn.Conv2d),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Conv2d),
        (nn.Tanh(), nn.Tanh),
    ],
)
def test_only_plain_layers_are_replaced(layer: nn.Module, replacement: type[nn.Module]) -> None:
    module = nn.Sequential(nn.Sequential(layer), nn.Flatten())
    copy = with_row_operators(module)
    assert type(copy[0][0]) is replacement
    assert module[0][0] is layer  # the original is left alone
    values = random_images(2).float()
    assert torch.allclose(copy(values), module(values), atol=1e-6)


def test_a_layer_taken_away() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid())
    network.register_module("2", None)
    assert [type(layer) for layer in with_row_operators(network).children()] == [PatchConv2d, RowSigmoid]
