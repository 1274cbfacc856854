"""Least squares without negative weights, beside SciPy's."""

import pytest
import torch
from scipy.optimize import nnls

from harness.attacks.sentences import nonnegative


@pytest.mark.parametrize(("rows", "columns"), [(40, 15), (40, 400), (6, 90)])
def test_it_comes_as_near_as_scipy(rows: int, columns: int) -> None:
    random = torch.Generator().manual_seed(rows + columns)
    matrix = torch.randn(rows, columns, generator=random, dtype=torch.float64)
    matrix[0].abs_()
    wanted = torch.randn(rows, generator=random, dtype=torch.float64)
    wanted[0] = -1.0  # which no weights reach
    expected, off = nnls(matrix.numpy(), wanted.numpy())
    assert off > 0.1
    made = nonnegative(matrix, wanted)
    again = nonnegative(matrix, wanted, torch.rand(columns, generator=random) - 0.9)
    for found in (made, again):
        assert found is not None and bool((found >= 0).all())
        assert float((wanted - matrix @ found).norm()) == pytest.approx(off, rel=1e-9)
        torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-9)


def test_columns_that_are_alike_or_zero() -> None:
    matrix = torch.tensor([[1.0, 1.0, 0.0, -1.0], [0.0, 0.0, 0.0, 2.0]], dtype=torch.float64)
    wanted = torch.tensor([3.0, -4.0], dtype=torch.float64)
    made = nonnegative(matrix, wanted, torch.ones(4))
    assert made is not None and bool((made >= 0).all())
    torch.testing.assert_close(matrix @ made, torch.tensor([3.0, 0.0], dtype=torch.float64))
    assert nonnegative(matrix * torch.inf, wanted) is None
    nothing = nonnegative(matrix, torch.tensor([-1.0, -1.0], dtype=torch.float64))
    assert nothing is not None and not nothing[:3].any()
