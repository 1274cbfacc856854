"""The audit's lower bound (docs/accounting.md, "The audit")."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from harness.audit.planted import audit_lower_bound, audit_p_value
from harness.base.errors import UsageError


def test_all_right() -> None:
    share = 0.05 ** (1 / 100)
    assert audit_lower_bound(100, 50, 50, 100) == pytest.approx(math.log(share / (1 - share)), abs=1e-6)
    assert audit_lower_bound(100, 50, 50, 100) == pytest.approx(3.49, abs=0.01)


def test_half_right_and_no_guess_prove_nothing() -> None:
    assert audit_lower_bound(100, 50, 50, 50) == 0
    assert audit_lower_bound(100, 0, 0, 0) == 0


def test_delta_by_its_definition() -> None:
    epsilon, canaries, guesses, correct, delta = 0.7, 500, 40, 35, 1e-3
    law = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    worst = max(sum(law.pmf(correct - k) for k in range(1, i + 1)) / i for i in range(1, correct + 1))
    expected = law.sf(correct - 1) + 2 * canaries * delta * worst
    assert audit_p_value(epsilon, canaries, guesses, correct, delta) == pytest.approx(expected, rel=1e-9)


def test_monotone() -> None:
    bounds = [audit_lower_bound(1000, 50, 50, correct, 1e-5) for correct in (60, 70, 80, 90, 100)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
    assert audit_lower_bound(1000, 50, 50, 90, 1e-3) < audit_lower_bound(1000, 50, 50, 90, 0)
    assert audit_lower_bound(1000, 50, 50, 90, 0, 0.99) < audit_lower_bound(1000, 50, 50, 90, 0, 0.95)


@pytest.mark.parametrize("epsilon", [pytest.param(0.5, marks=pytest.mark.slow), 2.0])
def test_randomised_response_keeps_the_confidence(epsilon: float) -> None:
    """The mechanism that reaches its epsilon: the bound lies above it in about 5% of runs, and is not vacuous."""
    right = np.random.default_rng(0).binomial(400, 1 / (1 + math.exp(-epsilon)), 400)
    bounds = np.array([audit_lower_bound(400, 200, 200, int(correct)) for correct in right])
    assert np.mean(bounds > epsilon) <= 0.08
    assert np.mean(bounds > epsilon / 2) > 0.5
    assert np.sum(bounds[:20] > epsilon) <= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"canaries": 10}, {"correct": 101}, {"k_plus": -1}, {"delta": 1.0}, {"confidence": 1.0}, {"confidence": 0.0},
    ],
)  # fmt: skip
def test_impossible_counts(wrong: dict) -> None:
    with pytest.raises(UsageError):
        audit_lower_bound(**({"canaries": 100, "k_plus": 50, "k_minus": 50, "correct": 80} | wrong))
