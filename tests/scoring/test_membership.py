"""Scores of membership by hand, and the intervals of what they tell."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from sklearn.datasets import load_digits

from harness.scoring.membership import (
    area,
    area_gain,
    area_interval,
    best_weight,
    found_at,
    lira_score,
    log_odds,
    log_probability,
    p_values,
    rmia_ratio,
    rmia_score,
    site_test,
)

OUT = np.array([[True, False, True], [False, True, True]])


def test_log_odds_are_those_of_softmax_and_exact_near_one() -> None:
    logits, labels = np.array([[1.0, 2.0, 3.0], [40.0, 0.0, 0.0], [800.0, 0.0, 0.0]]), np.array([2, 0, 0])
    odds = log_odds(logits, labels)
    p = np.exp(3) / np.exp([1, 2, 3]).sum()
    assert np.allclose(odds, [np.log(p / (1 - p)), 40 - np.log(2), 800 - np.log(2)])
    # 1 - p, of which a plain softmax has no digit left.
    assert log_probability(odds)[1] == pytest.approx(-2 * np.exp(-40.0))
    assert np.isfinite(log_probability(odds)).all()


def test_rmia_by_hand() -> None:
    """The middle example's p without it is that of the second model alone; the last one's is a mean of both."""
    p, references = np.array([0.9, 0.5, 0.6]), np.array([[0.6, 0.9, 0.2], [0.9, 0.3, 0.4]])
    p_out = np.array([0.6, 0.3, 0.3])
    odds, others = (np.log(one / (1 - one)) for one in (p, references))
    for weight in (0.0, 0.3, 1.0):
        expected = np.log(p / (0.5 * ((1 + weight) * p_out + 1 - weight)))
        assert np.allclose(rmia_ratio(odds, others, OUT, weight), expected)


def test_what_saw_an_example_has_no_part_in_its_scores() -> None:
    odds, references = np.array([0.1, 0.2, 0.3]), np.arange(6.0).reshape(2, 3)
    other = np.where(OUT, references, 1e6)
    assert np.array_equal(rmia_ratio(odds, references, OUT, 0.3), rmia_ratio(odds, other, OUT, 0.3))
    assert np.array_equal(lira_score(odds, references, OUT), lira_score(odds, other, OUT))


def test_lira_is_the_distance_in_standard_deviations() -> None:
    rng = np.random.default_rng(0)
    references = rng.normal(3.0, 2.0, (8, 4000))
    score = lira_score(np.full(4000, 5.0), references, np.ones((8, 4000), dtype=bool))
    assert np.allclose(score, (5 - references.mean(0)) / references.std(0, ddof=1).mean(), rtol=0.05)


def test_rmia_scores_and_p_values_count_the_population() -> None:
    population = np.array([1.0, 2.0, 3.0, 4.0])
    assert rmia_score(np.array([0.5, 2.5, 3.0, 9.0]), population).tolist() == [0, 0.5, 0.5, 1]
    assert p_values(np.array([0.5, 2.5, 3.0, 9.0]), population).tolist() == [1, 3 / 5, 3 / 5, 1 / 5]


def test_the_weight_is_the_one_that_tells_best() -> None:
    """Where models that saw an example are sure of it, p_out alone is the better denominator."""
    rng = np.random.default_rng(1)
    half = rng.random((2, 400)) < 0.5
    seen = np.stack([half[0], ~half[0], half[1], ~half[1]])
    hard = rng.normal(0, 3, 400)
    assert best_weight(hard + 1.5 * seen + rng.normal(0, 0.3, seen.shape), seen) == 1.0


def test_the_area_is_mann_whitney() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 20, 50).astype(float), rng.integers(0, 18, 70).astype(float)
    assert area(one, two) == pytest.approx(stats.mannwhitneyu(one, two).statistic / (50 * 70))


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_interval_covers_as_often_as_it_says(shift: float) -> None:
    true = float(stats.norm.cdf(shift / 2**0.5))
    rng, covered = np.random.default_rng(0), 0
    for _ in range(600):
        low, high = area_interval(rng.normal(shift, 1, 60), rng.normal(0, 1, 80))
        covered += low <= true <= high
    # 95%, within what 600 draws allow at p = 1e-4.
    assert stats.binomtest(covered, 600, 0.95).pvalue > 1e-4


def test_all_told_is_not_certainty() -> None:
    low, high = area_interval(np.arange(30.0) + 100, np.arange(25.0))
    assert high == 1.0 and low == pytest.approx(0.025 ** (1 / 25))


def test_found_at_a_share_of_false_alarms() -> None:
    others = np.arange(1000.0)
    found = found_at(np.array([989.0, 989.5, 990.0, 2000.0, 5.0]), others, 0.01)
    # Ten non-members, 990 to 999, are above the threshold.
    assert (found.found, found.members) == (3, 5) and found.low == pytest.approx(stats.beta.ppf(0.025, 3, 3))
    assert found_at(others, others[:999], 0.01).reason == "not measurable with 999 non-members, 1000 are"
    assert found_at(others, others, 0.001).found is None


def federation(seed: int, shift: float) -> np.ndarray:
    """Updates (6, 3, 640) of logistic regression: three sites, each round on 32 fresh digits of each.

    ``shift``: how much more often each site has labels of its own.
    """
    pixels, labels = load_digits(return_X_y=True)
    images, rng = pixels / 16, np.random.default_rng(seed)
    updates = []
    for _ in range(6):
        weights = rng.normal(0, 0.1, (64, 10))
        for site in range(3):
            own = np.where(labels % 3 == site, 1 + shift, 1.0)
            batch = rng.choice(len(labels), 32, p=own / own.sum())
            guesses = softmax(images[batch] @ weights, axis=1)
            updates.append((images[batch].T @ (guesses - np.eye(10)[labels[batch]])).ravel())
    return np.reshape(updates, (6, 3, 640))


@pytest.mark.slow
def test_sites_that_are_alike_are_not_told() -> None:
    found = [site_test(federation(seed, 0.0), 199, seed) for seed in range(200)]
    assert stats.kstest([one.p for one in found], "uniform").pvalue > 0.01
    assert stats.binomtest(sum(one.right for one in found), 200 * 18, found[0].chance).pvalue > 0.01


def test_sites_with_labels_of_their_own_are_told() -> None:
    found = [site_test(federation(seed, 3.0), 199, seed) for seed in range(20)]
    assert sum(one.p <= 0.01 for one in found) >= 18
    assert np.mean([one.right / one.updates for one in found]) > 0.6


def test_one_round_tells_no_site() -> None:
    with pytest.raises(ValueError, match="two and more"):
        site_test(np.ones((1, 3, 4)))


def test_the_interval_of_a_gain_covers_it_as_often_as_it_says() -> None:
    """Two scores of the same examples that go together; the true areas are Phi of the distance over root 2."""
    random, hits, trials, count = np.random.default_rng(7), 0, 400, 150
    truth = float(stats.norm.cdf(0.9 / math.sqrt(2)) - stats.norm.cdf(0.5 / math.sqrt(2)))
    for _ in range(trials):
        shared = random.standard_normal((2, count))
        one, two = (0.7 * shared + math.sqrt(0.51) * random.standard_normal((2, count)) for _ in range(2))
        gain, low, high = area_gain(one[0] + 0.9, one[1], two[0] + 0.5, two[1])
        assert gain == pytest.approx(area(one[0] + 0.9, one[1]) - area(two[0] + 0.5, two[1]))
        hits += low <= truth <= high
    # 95% of 400, within four standard errors.
    assert 0.906 < hits / trials < 0.994


def test_a_score_gains_nothing_over_itself() -> None:
    members, others = np.random.default_rng(8).standard_normal((2, 50))
    assert area_gain(members, others, members, others) == (0, 0, 0)
    gain, low, high = area_gain(members + 9, others, members, others)
    assert 0 < low < gain < high
