"""Grouped convolutions of rows equal the library's row by row, to the second derivative; rows stay independent."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.row_layers import are_grouped, convolve_rows

LAYERS = {
    "stride 2": nn.Conv2d(3, 4, 5, stride=2, padding=2),
    "no padding": nn.Conv2d(2, 3, 3),
    "one channel": nn.Conv2d(1, 4, 5, stride=2, padding=2),
    "not square": nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0)),
}
LAYER = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
# Accuracy CNN on colour images, the case in which two rows take a kernel of their own.
WIDE = nn.Conv2d(3, 32, 3)


def random_rows(layer: nn.Conv2d, rows: int, examples: int, size: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    kernels = torch.randn(rows, *layer.weight.shape, generator=generator)
    images = torch.randn(rows, examples, layer.in_channels, size, size - 1, generator=generator)
    return images, kernels


def row_by_row(images: Tensor, kernels: Tensor, layer: nn.Conv2d) -> Tensor:
    pairs = zip(images, kernels, strict=True)
    return torch.stack([functional.conv2d(each, own, None, layer.stride, layer.padding) for each, own in pairs])


def grouped(images: Tensor, kernels: Tensor, layer: nn.Conv2d) -> Tensor:
    return convolve_rows(images, kernels, layer)


def derivatives(function, images: Tensor, kernels: Tensor, layer: nn.Conv2d) -> list[Tensor]:
    """Output, first derivatives, and derivatives of a function of those first derivatives."""
    unknowns = [images.clone().requires_grad_(True), kernels.clone().requires_grad_(True)]
    output = function(*unknowns, layer)
    first = torch.autograd.grad(output.pow(3).sum(), unknowns, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), unknowns)
    return [output, *first, *second]


@LAYER
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("rows", "examples"), [(1, 2), (2, 1), (5, 3)])
def test_equals_the_rows_one_by_one(layer: nn.Conv2d, dtype: torch.dtype, rows: int, examples: int) -> None:
    images, kernels = (each.to(dtype) for each in random_rows(layer, rows, examples))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    ours, theirs = (derivatives(each, images, kernels, layer) for each in (grouped, row_by_row))
    for left, right in zip(ours, theirs, strict=True):
        assert left.shape == right.shape
        assert (left - right).norm() <= tolerance * right.norm()


@pytest.mark.parametrize("layer", [*LAYERS.values(), WIDE], ids=[*LAYERS, "wide"])
@pytest.mark.parametrize("examples", [1, 3])
def test_a_row_does_not_depend_on_the_others(layer: nn.Conv2d, examples: int) -> None:
    images, kernels = random_rows(layer, 12, examples, size=32)
    every = derivatives(grouped, images, kernels, layer)
    for some in (slice(0, 2), slice(3, 8), slice(10, 12)):
        alone = derivatives(grouped, images[some], kernels[some], layer)
        assert all(torch.equal(left, right[some]) for left, right in zip(alone, every, strict=True))


def test_other_numbers_than_32_bit_floats_and_pictures_take_patches() -> None:
    assert not are_grouped(torch.zeros(8, 1, 1, dtype=torch.float64))
    assert not are_grouped(torch.zeros(3, 1, 1))


def test_processors_without_avx_512_take_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, grouped_there in [("AVX2", False), ("DEFAULT", False), ("AVX512", True)]:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert are_grouped(torch.zeros(8, 1, 1)) == (grouped_there and torch.backends.mkldnn.is_available())
