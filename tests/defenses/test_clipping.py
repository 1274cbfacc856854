"""Properties of clipping, for any vectors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.vectors import clip, clip_factors, example_factors, group_sums, noise_deviation

GROUPS = st.sampled_from([(5,), (2, 3), (1, 1, 3)])
NUMBERS = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.floats(-1e6, -1e-6))
VECTORS = st.lists(NUMBERS, min_size=5, max_size=5).map(lambda values: torch.tensor([values], dtype=torch.float64))
BOUNDS = st.floats(1e-3, 1e3)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


@QUICK
@given(VECTORS, BOUNDS, GROUPS)
def test_norms_are_bounded_and_directions_kept(vector: torch.Tensor, bound: float, groups: tuple[int, ...]) -> None:
    clipped = clip(vector, bound, groups)
    norms, clipped_norms = (group_sums(values.square(), groups).sqrt() for values in (vector, clipped))
    torch.testing.assert_close(clipped_norms, norms.clamp(max=bound), rtol=1e-9, atol=1e-12)
    inner = group_sums(vector * clipped, groups)
    torch.testing.assert_close(inner, norms * clipped_norms, rtol=1e-9, atol=1e-12)


@QUICK
@given(VECTORS, BOUNDS, GROUPS)
def test_clipping_twice_is_clipping_once(vector: torch.Tensor, bound: float, groups: tuple[int, ...]) -> None:
    once = clip(vector, bound, groups)
    torch.testing.assert_close(clip(once, bound, groups), once, rtol=1e-12, atol=0)


@QUICK
@given(VECTORS, BOUNDS, GROUPS, st.floats(1e-3, 1e3))
def test_clipping_scales_with_its_bound(
    vector: torch.Tensor, bound: float, groups: tuple[int, ...], scale: float
) -> None:
    scaled = clip(scale * vector, scale * bound, groups)
    torch.testing.assert_close(scaled, scale * clip(vector, bound, groups), rtol=1e-9, atol=1e-12)


def test_zero_is_left_alone_and_an_infinite_bound_changes_nothing() -> None:
    vector = torch.tensor([[0.0, 0.0, 3.0, 4.0]])
    assert clip(vector, 1.0, (2, 2)).tolist() == [[0.0, 0.0, pytest.approx(0.6), pytest.approx(0.8)]]
    assert torch.equal(clip(vector, math.inf, (2, 2)), vector)
    assert clip_factors(torch.tensor([0.0, 2.0, 8.0]), 4.0).tolist() == [1.0, 1.0, 0.5]


def test_example_factors_by_layer_and_as_a_whole() -> None:
    norms = torch.tensor([[[3.0, 4.0]]])
    assert example_factors(norms, 2.0, "layer").tolist() == [[[pytest.approx(2 / 3), 0.5]]]
    assert example_factors(norms, 2.0, "whole").tolist() == [[[pytest.approx(0.4), pytest.approx(0.4)]]]


def test_noise_deviation() -> None:
    assert noise_deviation(6.0, 4.0) == 24.0
    assert noise_deviation(0.0, math.inf) == 0.0
    with pytest.raises(ValueError, match="use a finite clip or sigma=0"):
        noise_deviation(6.0, math.inf)
