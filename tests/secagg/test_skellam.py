"""The noise is Skellam at every variance up to 2^60 and beyond, and the tests notice when it is not."""

import numpy as np
import pytest
from scipy import special, stats

from harness.base.errors import UsageError
from harness.secagg import numbers, skellam
from harness.secagg.mechanisms import log_probability

DRAWS = 200_000
VARIANCES = [2.0**power for power in (-3, 3, 11, 12, 20, 33, 53, 54, 60, 70)]


def complaints(values: np.ndarray, variance: float) -> list[str]:
    """What in a sample is not Skellam of that variance; each test errs once in about a million samples."""
    found, deviation = [], np.sqrt(variance)
    standard = values / deviation
    if abs(standard.mean()) > 5 / np.sqrt(values.size):
        found.append("mean")
    # The fourth moment of Skellam is 3 + 1/variance.
    if abs(standard.var() - 1) > 5 * np.sqrt((2 + 1 / variance) / values.size):
        found.append("variance")
    if variance >= 2**11:
        # The law of the distance for many draws; the exact one is slow, and here no other.
        if stats.kstest(standard, "norm", method="asymp").pvalue < 1e-6:
            found.append("shape")
        beyond = int((np.abs(standard) > 3).sum())
        if stats.binomtest(beyond, values.size, 2 * stats.norm.sf(3)).pvalue < 1e-6:
            found.append("tail")
    else:
        limit = int(6 * deviation) + 1
        inside = values[np.abs(values) <= limit]
        expected = special.ive(np.abs(np.arange(-limit, limit + 1)), variance)
        observed = np.bincount(inside + limit, minlength=2 * limit + 1)
        often = expected * values.size > 5
        rest = [values.size - observed[often].sum()], [values.size * (1 - expected[often].sum())]
        counts = np.append(observed[often], rest[0]), np.append(expected[often] * values.size, rest[1])
        if stats.chisquare(*counts, sum_check=False).pvalue < 1e-6:
            found.append("shape")
    if variance >= 2**20 and stats.chisquare(np.bincount(values & 255, minlength=256)).pvalue < 1e-6:
        found.append("low byte")
    return found


@pytest.mark.parametrize("variance", VARIANCES)
def test_draws_are_skellam(variance: float) -> None:
    assert complaints(skellam(variance, (DRAWS,), numbers("draws")), variance) == []


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("factor", [0.96, 1.04, *(pytest.param(far, marks=pytest.mark.slow) for far in (0.5, 2.0))])
def test_a_wrong_variance_is_noticed(variance: float, factor: float) -> None:
    assert "variance" in complaints(skellam(factor * variance, (DRAWS,), numbers("wrong")), variance)


def test_noise_that_misses_odd_integers_is_noticed() -> None:
    """What numpy's Poisson gives at such variances."""
    generator = numbers("numpy")
    values = generator.poisson(2.0**59, DRAWS) - generator.poisson(2.0**59, DRAWS)
    assert not (values & 1).any() and "low byte" in complaints(values, 2.0**60)
    even = skellam(2.0**58, (DRAWS,), numbers("even")) * 2
    assert complaints(even, 2.0**60) == ["low byte"]


def test_a_rounded_small_noise_is_noticed() -> None:
    values = np.rint(numbers("normal").standard_normal(DRAWS) * np.sqrt(2)).astype(np.int64)
    assert "shape" in complaints(values, 2.0)


def test_the_sum_of_shares_has_the_whole_variance() -> None:
    shares = np.stack([skellam(2.0**50 / 8, (DRAWS,), numbers("share", client)) for client in range(8)])
    assert complaints(shares.sum(axis=0), 2.0**50) == []
    assert "variance" in complaints(shares[:7].sum(axis=0), 2.0**50)


@pytest.mark.parametrize("variance", [2.0**12, 2.0**14, 2.0**17])
def test_probabilities_are_those_of_the_bessel_function(variance: float) -> None:
    values = np.arange(-int(12 * np.sqrt(variance)), int(12 * np.sqrt(variance)) + 1)
    ours = np.exp(log_probability(values, variance))
    assert abs(ours.sum() - 1) < 2e-12
    near = np.abs(values) < 6 * np.sqrt(variance)
    exact = special.ive(np.abs(values[near]), variance)
    assert np.abs(ours[near] / exact - 1).max() < 1e-10


def test_no_variance_is_no_noise() -> None:
    none = skellam(0.0, (5, 7), numbers("none"))
    assert not none.any() and none.dtype == np.int64


@pytest.mark.parametrize("variance", [-1.0, float("nan"), float("inf"), 2.0**101])
def test_impossible_variances_are_refused(variance: float) -> None:
    with pytest.raises(UsageError, match=r"from 0 to 2\^100"):
        skellam(variance, (3,), numbers("refused"))
