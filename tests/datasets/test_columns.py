"""The schema of a table: which features belong together, and the possible row nearest to any numbers."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.base.columns import MISSING, Columns, Group

COLUMNS = Columns(("age", "hours"), (Group("sex", ("f", "m")), Group("job", ("a", "b", "c"), optional=True)))


def possible_rows(numbers: Tensor) -> list[Tensor]:
    """Every encoding of categories, with the continuous columns as they are nearest."""
    sexes, jobs = torch.eye(2), torch.cat([torch.eye(3), torch.zeros(1, 3)])
    return [torch.cat([numbers.clamp(0, 1), sex, job]) for sex, job in itertools.product(sexes, jobs)]


def test_features_stand_in_order() -> None:
    assert COLUMNS.width == 7
    assert COLUMNS.slices == (slice(2, 4), slice(4, 7))
    assert Columns(("x",)).slices == () and Columns((), (Group("g", ("a",)),)).width == 1


def test_categories() -> None:
    features = torch.tensor([[0.3, 2.0, 0.1, 0.2, 0.4, 0.6, 0.5], [0.3, -1.0, 0.9, 0.2, 0.5, 0.2, 0.4]])
    assert COLUMNS.categories(features).tolist() == [[1, 1], [0, MISSING]]
    projected = COLUMNS.project(features)
    assert projected.tolist() == [pytest.approx([0.3, 1, 0, 1, 0, 1, 0]), pytest.approx([0.3, 0, 1, 0, 0, 0, 0])]
    assert Columns(("x",)).categories(features[:, :1]).shape == (2, 0)


@given(st.lists(st.floats(-2, 3, width=32), min_size=7, max_size=7))
def test_a_projection_is_the_nearest_possible_row(values: list[float]) -> None:
    features = torch.tensor(values)
    projected = COLUMNS.project(features)
    rows = possible_rows(features[:2])
    assert any(torch.equal(projected, row) for row in rows)
    nearest = min(float((row - features).norm()) for row in rows)
    assert float((projected - features).norm()) == pytest.approx(nearest, rel=1e-5)
    assert torch.equal(COLUMNS.project(projected), projected)


def test_leading_axes_do_not_matter() -> None:
    features = torch.rand(2, 3, 1, 7, generator=torch.Generator().manual_seed(0))
    one_by_one = torch.stack([COLUMNS.project(row) for row in features.reshape(-1, 7)])
    assert torch.equal(COLUMNS.project(features).reshape(-1, 7), one_by_one)
