"""What is computed for rows is what PyTorch's own layers and losses compute, up to the second derivative."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.bilinear import RowSigmoid
from harness.models.example_gradients import example_losses
from harness.models.row_layers import RowELU, as_kernels, as_windows, windows_of
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


def of_sums(layer: nn.Module, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, first and second derivatives of the sum."""
    leaf = values.clone().requires_grad_()
    made = layer(leaf)
    (once,) = torch.autograd.grad(made.sum(), leaf, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), leaf)
    return made.detach(), once.detach(), twice


@pytest.mark.parametrize("alpha", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_unit_is_the_library_s_also_at_exactly_zero_where_dark_images_stand(
    alpha: float, dtype: torch.dtype
) -> None:
    values = torch.tensor([-40.0, -17.0, -3.0, -1e-3, -1e-30, 0.0, 1e-30, 0.5, 90.0, 1e4], dtype=dtype)
    ours, theirs = (of_sums(layer, values) for layer in (RowELU(alpha), nn.ELU(alpha)))
    for made, truth in zip(ours[:2], theirs[:2], strict=True):
        assert torch.allclose(made, truth, rtol=1e-6, atol=1e-7)
    assert ours[1][5] == torch.tensor(alpha, dtype=dtype)
    # At zero itself the second derivative jumps, from alpha to nothing, and either is one.
    elsewhere = values != 0
    assert torch.allclose(ours[2][elsewhere], theirs[2][elsewhere], rtol=1e-6, atol=1e-7)


def test_no_bit_of_the_unit_depends_on_the_values_beside() -> None:
    values = torch.randn(999, generator=torch.Generator().manual_seed(0))
    for first, last in ((0, 3), (5, 37), (100, 999)):
        assert torch.equal(RowELU()(values[first:last].clone()), RowELU()(values)[first:last])


def with_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    losses = example_losses(leaf, labels)
    return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]


def drawn(batch: int, classes: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(3, batch, classes, generator=random), torch.randint(classes, (3, batch), generator=random)


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (5, 10), (16, 62), (33, 10)])
def test_losses_of_examples_are_cross_entropy(batch: int, classes: int) -> None:
    logits, labels = drawn(batch, classes)
    made = example_losses(logits, labels)
    torch.testing.assert_close(
        made.flatten(), functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    )


@pytest.mark.parametrize("batch", [1, 7, 15, 16, 17, 31, 38, 100])
@pytest.mark.parametrize("classes", [2, 10, 62])
def test_the_loss_of_an_example_does_not_depend_on_the_batch(batch: int, classes: int) -> None:
    logits, labels = drawn(120, classes)
    for whole, part in zip(
        with_gradient(logits, labels), with_gradient(logits[:, :batch], labels[:, :batch]), strict=True
    ):
        assert torch.equal(whole[:, :batch], part)


GEOMETRIES = [
    ((3, 3), (0, 0), (1, 1)),
    ((3, 2), (1, 0), (2, 1)),
    ((5, 5), (2, 2), (2, 2)),
    ((2, 2), (0, 1), (3, 3)),  # places that no window reaches
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_windows_times_kernels_are_the_convolution(geometry: tuple[tuple[int, int], ...], channels_last: bool) -> None:
    kernel, padding, stride = geometry
    random = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 4, 9, 8, generator=random, dtype=torch.float64)
    if channels_last:
        images = images.movedim(2, -1).contiguous().movedim(-1, 2)
    kernels = torch.randn(5, 4, *kernel, generator=random, dtype=torch.float64)
    made = windows_of(images, *geometry) @ as_windows(kernels).mT
    expected = functional.conv2d(images.flatten(0, 1), kernels, None, stride, padding)
    torch.testing.assert_close(made, expected.flatten(2).mT.unflatten(0, (2, 3)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(as_kernels(as_windows(kernels), kernel), kernels)


@pytest.mark.parametrize("geometry", GEOMETRIES[1::2])
def test_windows_have_derivatives_of_any_order(geometry: tuple[tuple[int, int], ...]) -> None:
    images = torch.randn(2, 1, 2, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    images.requires_grad_()
    assert torch.autograd.gradcheck(lambda given: windows_of(given, *geometry).square(), images)
    assert torch.autograd.gradgradcheck(lambda given: windows_of(given, *geometry).pow(3), images)
