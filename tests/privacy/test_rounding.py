"""Rounding sigmas down is an upper bound, and a close one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.privacy.accountant import rounded_down


@settings(deadline=None, derandomize=True)
@given(sigmas=arrays(float, st.integers(1, 60), elements=st.floats(0.01, 1000)), groups=st.integers(1, 20))
def test_never_up_and_few_are_left(sigmas: np.ndarray, groups: int) -> None:
    rounded = rounded_down(sigmas, groups)
    assert np.all(rounded <= sigmas)
    assert set(rounded) <= set(sigmas)
    assert len(set(rounded)) <= max(groups, 1)


def test_few_are_left_alone() -> None:
    sigmas = np.array([3.0, 1.0, 3.0, 2.0])
    assert rounded_down(sigmas, 3) is sigmas
    assert rounded_down(sigmas, None) is sigmas


def test_groups_are_narrow() -> None:
    sigmas = np.linspace(3, 15, 10_000)
    assert np.max(sigmas / rounded_down(sigmas, 256)) < 5 ** (1 / 256) * (1 + 1e-9)
