import math

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_1samp

from harness.results import Rate, Summary
from harness.scoring import clopper_pearson, rate_of, success_table, summary_of, upper_bound


def test_the_three_rules_at_their_thresholds() -> None:
    metrics = {
        "rmse": np.array([0.1, 0.1000001]),
        "rmse_raw": np.array([0.5999, 0.6]),
        "ssim": np.array([0.9, 0.8999]),
    }
    table = success_table(metrics)
    assert set(table) == {"strict", "ssim", "table3"}
    assert all(flags.tolist() == [True, False] for flags in table.values())


def test_an_unavailable_ssim_is_not_a_failure() -> None:
    metrics = {"rmse": np.zeros(2), "rmse_raw": np.zeros(2)}
    assert set(success_table(metrics)) == {"strict", "table3"}


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 64), (3, 64), (32, 64), (64, 64), (17, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_clopper_pearson_against_scipy(successes: int, n: int, confidence: float) -> None:
    expected = binomtest(successes, n).proportion_ci(confidence, method="exact")
    assert clopper_pearson(successes, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_fifty_nine_victims_are_needed_to_bound_the_rate_by_five_percent() -> None:
    assert upper_bound(0, 58) > 0.05 >= upper_bound(0, 59)
    assert upper_bound(1, 92) > 0.05 >= upper_bound(1, 93)


def test_clopper_pearson_of_nothing_and_of_nonsense() -> None:
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="impossible"):
        clopper_pearson(3, 2)


def test_rate() -> None:
    rate = rate_of(np.array([True, False, False, False]))
    assert (rate.rate, rate.successes, rate.n) == (0.25, 1, 4)
    assert rate.ci95 == clopper_pearson(1, 4)
    assert rate_of([]) == Rate(ci95=(0.0, 1.0))


def test_images_of_one_victim_are_not_independent() -> None:
    """95% intervals of victims that succeed as a whole or not at all hold the truth as often as they say."""
    random, truth, images = np.random.default_rng(0), 0.8, 4
    together = [np.repeat(random.random((30, 1)) < truth, images, 1) for _ in range(800)]
    held = np.mean([low <= truth <= high for low, high in (rate_of(flags).ci95 for flags in together)])
    # As if all images were trials of their own:
    naive = np.mean([low <= truth <= high for low, high in (rate_of(flags.ravel()).ci95 for flags in together)])
    assert held > 0.94 and naive < 0.8
    independent = [random.random((30, images)) < truth for _ in range(800)]
    found = [rate_of(flags).ci95 for flags in independent]
    assert np.mean([low <= truth <= high for low, high in found]) > 0.93
    exact = [rate_of(flags.ravel()).ci95 for flags in independent]
    assert np.mean([high - low for low, high in found]) < 1.15 * np.mean([high - low for low, high in exact])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_victims_that_all_share_one_fate_count_once_each(share: float) -> None:
    assert rate_of(np.full((12, 4), share)).ci95 == rate_of(np.full(12, share)).ci95
    assert rate_of(np.full((1, 4), share)).ci95 == clopper_pearson(share, 1)


def test_a_mean_over_images_has_the_interval_of_the_victims() -> None:
    values = np.random.default_rng(0).normal(size=(9, 3))
    made, own = summary_of(values), summary_of(values.mean(1))
    assert made.mean == pytest.approx(own.mean) and made.ci95 == pytest.approx(own.ci95)
    assert made.std == pytest.approx(values.std(ddof=1))
    assert summary_of(values[:1]).ci95 is None


def test_summary_against_scipy() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=20)
    expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
    summary = summary_of(values)
    assert summary.mean == pytest.approx(math.fsum(values) / 20)
    assert summary.std == pytest.approx(np.std(values, ddof=1))
    assert summary.ci95 == pytest.approx((expected.low, expected.high))


def test_summary_never_drops_a_victim() -> None:
    assert summary_of([]) == Summary()
    assert summary_of([1.0, float("nan")]) == Summary()
    assert summary_of([2.0]) == Summary(mean=2.0, median=2.0)
