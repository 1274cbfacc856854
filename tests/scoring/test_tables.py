"""Errors on a table by kind of column, written out row by row."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.base.columns import Columns, Group
from harness.datasets import load_dataset
from harness.scoring import Pairs, TableScale, measured

COLUMNS = Columns(("a", "b", "c"), (Group("g", ("x", "y")), Group("h", ("x", "y", "z"), optional=True)))
# Column c is constant.
TABLE = torch.tensor([[0.0, 0.4, 0.5, 1, 0, 1, 0, 0], [1.0, 0.6, 0.5, 0, 1, 0, 0, 1], [0.5, 0.5, 0.5, 0, 1, 0, 0, 0]])[
    :, None, None
]
SCALE = TableScale.of(COLUMNS, TABLE)
DEVIATIONS = [math.sqrt(1 / 6), math.sqrt(0.02 / 3), 1.0]


def test_deviations_are_those_of_the_table() -> None:
    assert SCALE.deviations.tolist() == pytest.approx(DEVIATIONS, rel=1e-6)


def by_hand(truth: list[float], guess: list[float]) -> tuple[float, float]:
    errors = [abs(t - min(max(g, 0), 1)) / d for t, g, d in zip(truth, guess, DEVIATIONS, strict=False)]
    return math.sqrt(sum(error**2 for error in errors) / 3), sum(error <= 0.1 for error in errors) / 3


@given(st.lists(st.floats(-1, 2, width=32), min_size=24, max_size=24))
def test_continuous_columns(values: list[float]) -> None:
    made = torch.tensor(values, dtype=torch.float64).reshape(3, 1, 1, 8)
    metrics = measured(Pairs(TABLE, made, SCALE))[0]
    expected = [by_hand(t, g) for t, g in zip(TABLE.flatten(1).tolist(), made.flatten(1).tolist(), strict=True)]
    assert metrics["continuous_rmse"] == pytest.approx([error for error, _ in expected], abs=1e-5)
    strict = SCALE.strict(TABLE, made).tolist()
    right = metrics["categories_all_right"].tolist()
    assert strict == [error <= 0.1 and share == 1 for (error, _), share in zip(expected, right, strict=True)]


def changed(row: int, **features: float) -> Tensor:
    made = TABLE.clone()
    for place, value in features.items():
        made[row, 0, 0, int(place[1:])] = value
    return made


def test_the_truth_itself_is_perfect() -> None:
    metrics = measured(Pairs(TABLE, TABLE, SCALE))[0]
    assert metrics["continuous_rmse"].tolist() == [0, 0, 0]
    shares = "continuous_within", "categorical_accuracy", "categories_all_right"
    assert all(metrics[name].tolist() == [1, 1, 1] for name in shares)
    assert SCALE.strict(TABLE, TABLE).all()


@pytest.mark.parametrize(
    ("row", "features", "accuracy"),
    [
        (0, {"f3": 0.6, "f4": 0.5}, 1.0),  # only the largest feature counts
        (0, {"f3": 0.4}, 1.0),  # a group that must have a value has one
        (0, {"f3": 0.1, "f4": 0.2}, 0.5),
        (0, {"f5": 0.4}, 0.5),  # nearer to a missing value
        (2, {"f5": 0.4}, 1.0),  # and that is the truth
        (2, {"f5": 0.6}, 0.5),
    ],
)
def test_categories(row: int, features: dict[str, float], accuracy: float) -> None:
    made = changed(row, **features)
    metrics = measured(Pairs(TABLE, made, SCALE))[0]
    assert metrics["categorical_accuracy"][row] == accuracy
    assert metrics["categories_all_right"][row] == float(accuracy == 1)
    assert SCALE.strict(TABLE, made)[row] == (accuracy == 1)


def test_strict_counts_in_standard_deviations() -> None:
    """One deviation in a narrow column weighs as much as one in a wide column."""
    near, far = (changed(1, f1=0.6 - share * DEVIATIONS[1]) for share in (0.17, 0.18))  # 0.1 * sqrt(3) = 0.173
    assert SCALE.strict(TABLE, near)[1] and not SCALE.strict(TABLE, far)[1]


def test_a_batch_of_victims_keeps_its_axes() -> None:
    truth = TABLE[None].expand(4, 3, 1, 1, 8)
    assert SCALE.strict(truth, truth).shape == (4, 3)


def test_tables_of_one_kind_of_column() -> None:
    numbers, groups = Columns(("a",)), Columns((), (Group("g", ("x", "y")),))
    for columns, table, absent in (
        (numbers, torch.rand(5, 1, 1, 1), {"categorical_accuracy", "categories_all_right"}),
        (groups, torch.eye(2)[:, None, None], {"continuous_rmse", "continuous_within"}),
    ):
        scale = TableScale.of(columns, table)
        assert scale.strict(table, table).all() and not scale.strict(table, table.flip(0) + 0.3).all()
        made, reasons = measured(Pairs(table, table, scale))
        assert set(reasons) == {"psnr", "ssim", "lpips"} | absent and not set(made) & set(reasons)
        assert all(np.isfinite(values).all() for values in made.values())


def test_knowing_only_the_class_of_a_tumour_is_no_success(tmp_path: Path) -> None:
    """Within a tenth of the columns' ranges, as the rule for images would ask, the class means are for many rows."""
    cancer = load_dataset("cancer", tmp_path)
    means = torch.stack([cancer.images[cancer.labels == label].mean(0) for label in (0, 1)])[cancer.labels]
    by_range = (means - cancer.images).flatten(1).square().mean(1).sqrt() <= 0.1
    assert by_range.float().mean() > 0.3
    assert TableScale.of(cancer.columns, cancer.images).strict(cancer.images, means).float().mean() == 0
