"""What a limit says of several targets at once: no attacker beats it, and it is never above what places alone say."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from harness.privacy import GaussianLimit, Limit, PureLimit, several_targets
from harness.privacy.several import Alike, one_by_one, several_groups, together

CANDIDATES, PLACES = 4, 4
Counts = NDArray[np.int64]


def corners(mu: float, dimension: int, offset: int) -> NDArray[np.float64]:
    """Candidates (4, dimension) at a distance mu from their centre, in coordinates of their own."""
    own = np.zeros((CANDIDATES, dimension))
    own[:, offset : offset + CANDIDATES] = np.eye(CANDIDATES) - 1 / CANDIDATES
    return own * mu / np.linalg.norm(own[0])


def optimal_hits(mu: float, shared: bool, whole: bool, victims: int, seed: int) -> Counts:
    """Targets (V,) of four that the best attacker names, who sees the sum of their vectors under unit noise.

    Args:
        shared: whether all targets move the sum along the same directions, where they hide each other, or each along
            its own.
        whole: whether the attacker names the most probable combination, or the most probable candidate of each target.
    """
    random = np.random.default_rng(seed)
    dimension = CANDIDATES * (1 if shared else PLACES)
    vectors = [corners(mu, dimension, 0 if shared else place * CANDIDATES) for place in range(PLACES)]
    combinations = np.array(list(itertools.product(range(CANDIDATES), repeat=PLACES)))
    means = sum(vectors[place][combinations[:, place]] for place in range(PLACES))
    assert isinstance(means, np.ndarray)
    truth = random.integers(len(combinations), size=victims)
    seen = means[truth] + random.standard_normal((victims, dimension))
    posterior = np.exp(seen @ means.T - (means**2).sum(1) / 2)
    if whole:
        named = combinations[posterior.argmax(1)]
    else:
        each = [
            np.stack([posterior[:, combinations[:, place] == one].sum(1) for one in range(CANDIDATES)], axis=1)
            for place in range(PLACES)
        ]
        named = np.stack([one.argmax(1) for one in each], axis=1)
    return (named == combinations[truth]).sum(1)


@pytest.mark.parametrize("whole", [False, True], ids=["each", "whole"])
@pytest.mark.parametrize("shared", [False, True], ids=["own directions", "shared directions"])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.5])
def test_no_optimal_attacker_of_four_targets_beats_the_bound(mu: float, shared: bool, whole: bool) -> None:
    victims, trials = 16, 5_000
    hits = optimal_hits(mu, shared, whole, victims * trials, seed=1).reshape(trials, victims).sum(1)
    kappas, limit = np.full((victims, PLACES), 1 / CANDIDATES), GaussianLimit(mu)
    for wanted in range(1, victims * PLACES + 1, 3):
        rate = float((hits >= wanted).mean())
        if not rate:  # below every bound
            break
        error = 4 * math.sqrt(rate * (1 - rate) / trials)
        assert rate - error <= several_targets(wanted, kappas, limit)


def test_one_victim_s_wins_stay_under_the_law_of_the_theorem() -> None:
    """Tails, means and exponentials of wins: of the best attacker's, and of the count that bounds all."""
    for mu in (0.1, 0.5, 1.5):
        found = optimal_hits(mu, False, False, 50_000, seed=2)
        law = together(GaussianLimit(mu), PLACES).wins(1 / CANDIDATES)
        for start in range(PLACES):
            excess = np.maximum(found - start, 0)
            assert excess.mean() <= law[start:].sum() + 4 * excess.std() / math.sqrt(len(found))


def test_the_bound_is_near_what_is_reached_where_noise_is_strong() -> None:
    """At mu = .05 what is ruled out, at 1%, is nearer to what independent wins would reach than to places alone."""
    victims, places, kappa = 64, 8, 0.1
    kappas, limit = np.full((victims, places), kappa), GaussianLimit(0.05)
    reached = int(stats.binom.isf(0.01, victims * places, limit.ceiling(kappa)))
    found = next(hits for hits in itertools.count(1) if several_targets(hits, kappas, limit) <= 0.01)
    apart = next(hits for hits in itertools.count(1) if one_by_one(hits, kappas, limit) <= 0.01)
    assert reached < found < 1.3 * reached < 1.6 * reached < apart


def test_the_table_of_the_page_is_what_is_computed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text()
    rows = re.findall(r"^\| ([\d.]+), ([\d.]+), (\d+), (\d+) \| (\d+) of (\d+) \| (\d+) \| ([\d.]+) \|$", page, re.M)
    assert len(rows) == 6
    for mu, kappa, places, victims, apart, targets, together_, mean in rows:
        kappas, limit = np.full((int(victims), int(places)), float(kappa)), GaussianLimit(float(mu))
        assert int(targets) == kappas.size
        assert float(mean) == pytest.approx(kappas.size * limit.ceiling(float(kappa)), abs=0.05)
        for bound, least in ((one_by_one, int(apart)), (several_targets, int(together_))):
            assert bound(least, kappas, limit) <= 1e-4 < bound(least - 1, kappas, limit)


def settings() -> Iterator[tuple[NDArray[np.float64], Limit]]:
    random = np.random.default_rng(3)
    for _ in range(5):
        shape = int(random.integers(1, 80)), int(random.integers(1, 33))
        limit = GaussianLimit(random.uniform(0.02, 3)) if random.random() < 0.7 else PureLimit(random.uniform(0.02, 2))
        yield 10 ** random.uniform(-3, -0.3) * random.uniform(0.2, 1, shape), limit


def test_the_bound_of_places_alone_is_never_below_and_both_fall_with_hits() -> None:
    smaller = 0
    for kappas, limit in settings():
        hits = sorted({int(share * kappas.size) for share in (0, 0.05, 0.1, 0.2, 0.4, 0.7, 1)})
        found = [several_targets(one, kappas, limit) for one in hits]
        apart = [one_by_one(one, kappas, limit) for one in hits]
        assert found[0] == apart[0] == 1 and found == sorted(found, reverse=True)
        assert all(new <= old for new, old in zip(found, apart, strict=True))
        smaller += sum(new < old / 2 for new, old in zip(found, apart, strict=True))
    assert smaller > 5


@pytest.mark.parametrize("places", [1, 3, 8])
def test_independent_wins_at_the_limit_of_each_are_allowed(places: int) -> None:
    """Randomised response of each target by itself reaches every single limit, and wins are independent."""
    epsilon, candidates, victims = 0.8, 5, 20
    truth = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    limit, kappas = PureLimit(math.log(truth * candidates)), np.full((victims, places), 1 / candidates)
    assert limit.ceiling(1 / candidates) == pytest.approx(truth)
    for hits in range(0, victims * places + 1, 2):
        exact = float(stats.binom.sf(hits - 1, victims * places, truth))
        assert exact <= several_targets(hits, kappas, limit) + 1e-12


class Named(Limit):
    """All targets are named with a small chance, and nothing is told else: wins go together as far as they can."""

    title, chance = "named at random", 0.02

    def _power(self, kappa: float) -> float:
        return self.chance + (1 - self.chance) * kappa

    def repeated(self, times: int) -> Limit:
        raise NotImplementedError


def test_wins_that_go_together_are_allowed_as_often_as_one() -> None:
    victims, places, kappa, random, limit = 10, 6, 0.1, np.random.default_rng(5), Named()
    named = random.random((200_000, victims)) < Named.chance
    hits = np.where(named, places, random.binomial(places, kappa, named.shape)).sum(1)
    kappas = np.full((victims, places), kappa)
    for wanted in range(1, victims * places + 1):
        rate = float((hits >= wanted).mean())
        assert rate - 4 * math.sqrt(rate * (1 - rate) / len(hits)) <= several_targets(wanted, kappas, limit)
    assert several_targets(40, kappas, limit) < 0.05


def test_the_coins_of_the_theorem_are_enough_at_every_share() -> None:
    """The condition on r, on shares that are not those of the table; a smaller r breaks it."""
    random = np.random.default_rng(6)
    for limit in (GaussianLimit(0.2), GaussianLimit(1.0), PureLimit(0.5)):
        for kappa, slack in ((0.1, 1e-3), (0.004, 1e-6), (0.5, 1e-2)):
            chance = float(together(limit, 2).coins(np.array([kappa]), slack)[0])
            shares = 10 ** random.uniform(-14, 0, 3000)

            def excess(odds: float, shares: Any = shares, kappa: float = kappa, limit: Limit = limit) -> float:
                return max(limit.ceiling(kappa * one) - odds * limit.floor((1 - kappa) * one) for one in shares)

            assert excess(chance / (1 - chance)) <= slack * (1 + 1e-9)
            assert excess(0.8 * chance / (1 - chance)) > slack


@pytest.mark.parametrize("limit", [GaussianLimit(0.3), PureLimit(1.0)])
def test_the_least_of_an_event_is_what_its_opposite_leaves(limit: Limit) -> None:
    for kappa in (0.0, 1e-3, 0.3, 0.9, 1.0):
        assert limit.floor(kappa) == pytest.approx(1 - limit.ceiling(1 - kappa), abs=1e-12)
    assert GaussianLimit(0.3).floor(1e-20) > 0


def test_random_blind_probabilities_count_as_their_law() -> None:
    """Two values each with a half: between the bounds of either, and as that of one where both are alike."""
    victims, places, limit = 30, 4, GaussianLimit(0.1)

    def bound(*kappas: float) -> float:
        weights = np.full(len(kappas), 1 / len(kappas))
        return several_groups(30, victims, places, [Alike(victims * places, np.array(kappas), weights)], limit)

    assert (
        bound(0.1)
        == pytest.approx(bound(0.1, 0.1))
        == pytest.approx(several_targets(30, np.full((victims, places), 0.1), limit), rel=0.2)
    )
    assert bound(0.02, 0.1) == pytest.approx((bound(0.02) + bound(0.1)) / 2)
