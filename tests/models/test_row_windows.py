"""Windows are a convolution's patches with channels last, and have its derivatives."""

import pytest
import torch
from torch.nn import functional

from harness.models.row_layers import as_kernels, as_windows, windows_of

SIZE = (9, 8)
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
    images = torch.randn(2, 3, 4, *SIZE, generator=random, dtype=torch.float64)
    if channels_last:
        images = images.movedim(2, -1).contiguous().movedim(-1, 2)
    kernels = torch.randn(5, 4, *kernel, generator=random, dtype=torch.float64)
    made = windows_of(images, *geometry) @ as_windows(kernels).mT
    expected = functional.conv2d(images.flatten(0, 1), kernels, None, stride, padding)
    torch.testing.assert_close(made, expected.flatten(2).mT.unflatten(0, (2, 3)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(as_kernels(as_windows(kernels), kernel), kernels)


@pytest.mark.parametrize("geometry", GEOMETRIES[1::2])
def test_derivatives_of_any_order(geometry: tuple[tuple[int, int], ...]) -> None:
    images = torch.randn(2, 1, 2, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    images.requires_grad_()
    assert torch.autograd.gradcheck(lambda given: windows_of(given, *geometry).square(), images)
    assert torch.autograd.gradgradcheck(lambda given: windows_of(given, *geometry).pow(3), images)
