"""The unit for rows is ``nn.ELU``, with its derivatives: also at exactly zero, where dark images stand."""

import pytest
import torch
from torch import Tensor, nn

from harness.models.row_layers import RowELU


def derivatives(layer: nn.Module, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    leaf = values.clone().requires_grad_()
    made = layer(leaf)
    (once,) = torch.autograd.grad(made.sum(), leaf, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), leaf)
    return made.detach(), once.detach(), twice


@pytest.mark.parametrize("alpha", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_the_library_s(alpha: float, dtype: torch.dtype) -> None:
    values = torch.tensor([-40.0, -17.0, -3.0, -1e-3, -1e-30, 0.0, 1e-30, 0.5, 90.0, 1e4], dtype=dtype)
    ours, theirs = (derivatives(layer, values) for layer in (RowELU(alpha), nn.ELU(alpha)))
    for made, truth in zip(ours[:2], theirs[:2], strict=True):
        assert torch.allclose(made, truth, rtol=1e-6, atol=1e-7)
    assert ours[1][5] == torch.tensor(alpha, dtype=dtype)
    # At zero itself the second derivative jumps, from alpha to nothing, and either is one.
    elsewhere = values != 0
    assert torch.allclose(ours[2][elsewhere], theirs[2][elsewhere], rtol=1e-6, atol=1e-7)


def test_no_bit_depends_on_the_values_beside() -> None:
    values = torch.randn(999, generator=torch.Generator().manual_seed(0))
    for first, last in ((0, 3), (5, 37), (100, 999)):
        assert torch.equal(RowELU()(values[first:last].clone()), RowELU()(values)[first:last])
