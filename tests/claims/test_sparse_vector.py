"""The theorem that SVTPrivacy's choice is proven by, against all outcomes of few values, by integrals."""

import itertools
import math
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from harness.base.errors import UsageError
from harness.claims.answers import Facts
from harness.claims.filters import FILTERS
from harness.claims.sparse_vector import SECOND_PASS, Budget, budget_of

SVT = FILTERS["nvflare:SVTPrivacy"]
LENET = 61_706
Array = np.ndarray


def budget(values: int, **settings: Any) -> Budget:
    return budget_of(SVT.arguments(settings), values)


def log_above(x: Array) -> Array:
    """Log of the probability that Laplace noise of scale 1 is x at least."""
    return np.where(x > 0, -np.maximum(x, 0) - math.log(2), np.log1p(-np.exp(np.minimum(x, 0)) / 2))


@lru_cache
def thresholds(own: Budget, points: int = 12_001) -> tuple[Array, Array]:
    """Thresholds in units of gamma, and the logarithms of their density but for a constant."""
    at = own.tau + np.linspace(-60, 60, points) / own.threshold
    return at, -np.abs(at - own.tau) * own.threshold


def log_chance(own: Budget, magnitudes: list[float], passes: tuple[int, ...]) -> float:
    """Log of the probability, but for a constant, that values are accepted in these passes; 0 for not at all."""
    whole, last = thresholds(own)[1], max(passes)
    for magnitude, own_pass in zip(magnitudes, passes, strict=True):
        below, above = answers(own, magnitude)
        whole = whole + ((own_pass or last + 1) - 1) * below + (above if own_pass else 0.0)
    return float(logsumexp(whole))


@lru_cache
def answers(own: Budget, magnitude: float) -> tuple[Array, Array]:
    """Logs of the chances that a magnitude stays below each threshold, and that it is accepted."""
    apart = (thresholds(own)[0] - magnitude) * own.query / (2 * own.count)
    return log_above(-apart), log_above(apart)


def outcomes(values: int, count: int, most: int) -> list[tuple[int, ...]]:
    """The passes in which values are accepted: the last is the first with ``count`` of them in all."""

    def ends(passes: tuple[int, ...]) -> bool:
        last = max(passes)
        before = sum(0 < one < last for one in passes)
        return last > 0 and before < count <= sum(one > 0 for one in passes)

    return [one for one in itertools.product(range(most + 1), repeat=values) if ends(one)]


@pytest.mark.parametrize(("relation", "seed"), [*itertools.product(("replace", "zero-out"), range(6))])
def test_no_outcome_of_few_values_is_beyond_the_theorem(relation: Any, seed: int) -> None:
    random = Random(seed)
    values = random.choice([2, 3])
    own = budget(values, fraction=random.uniform(0.1, 1), epsilon=random.choice([0.3, 1, 4]), gamma=1,
                 tau=random.random())  # fmt: skip
    for _ in range(3):
        one = [random.choice([0.0, 1.0]) for _ in range(values)]
        other = [0.0] * values if relation == "zero-out" else [random.choice([0.0, 1.0]) for _ in range(values)]
        for passes in outcomes(values, own.count, 9 if values == 2 else 5):
            lost = abs(log_chance(own, one, passes) - log_chance(own, other, passes))
            assert lost <= own.choice(relation) + 1e-6, (own, one, other, passes)
            if max(passes) == 1:
                assert lost <= own.one_pass + 1e-6


def test_outcomes_are_all_there_are() -> None:
    """Their probabilities add up to those of outcomes that end so soon."""
    own = budget(2, fraction=0.5, epsilon=4, gamma=1)
    _, density = thresholds(own)
    most = [sum(math.exp(log_chance(own, [1.0, 0.0], one) - logsumexp(density)) for one in outcomes(2, 1, last))
            for last in (1, 4, 40)]  # fmt: skip
    assert most[0] < most[1] < most[2] < 1 + 1e-6 and most[2] > 0.99


def test_many_passes_lose_more_than_one() -> None:
    own = budget(2, fraction=1.0, epsilon=4, gamma=1)
    lost = log_chance(own, [1.0, 0.0], (1, 40)) - log_chance(own, [0.0, 1.0], (1, 40))
    assert own.one_pass < lost <= own.choice("replace")


def test_the_ledger_of_the_defaults_is_exceeded_by_an_outcome() -> None:
    """One client has gamma in the first half of LeNet's values, another in the second; the first half is accepted."""
    own = budget(LENET)
    at, density = thresholds(own, 400_001)
    scale, half = 2 * own.count / own.query, LENET // 2
    near = [half * (log_above((at - one) / scale) + log_above((1 - one - at) / scale)) for one in (1, 0)]
    lost = float(logsumexp(density + near[0]) - logsumexp(density + near[1]))
    assert 0.1 < 0.497 < lost < own.one_pass < own.choice("replace")
    proven = SVT.asked(SVT.arguments({}), Facts(numbers=LENET, scalars=0)).lines[0]
    assert proven.claimed is not None and proven.epsilon is not None
    assert proven.claimed < 6171 * 0.1 + lost < proven.epsilon == pytest.approx(6171 * 0.1 + own.choice("replace"))


@pytest.mark.parametrize("settings", [
    {}, {"fraction": 0.4}, {"fraction": 0.9, "tau": -1e-4}, {"fraction": 0.9, "tau": -1.0}, {"epsilon": 20.0},
    {"fraction": 0.499, "epsilon": 30.0}, {"tau": 1e-3},
])  # fmt: skip
@pytest.mark.parametrize("values", [1000, LENET])
def test_one_pass_is_called_sure_only_where_it_is(settings: dict[str, Any], values: int) -> None:
    """The chance that fewer than c zeros are accepted, integrated over the threshold."""
    from scipy.stats import binom

    own = budget(values, **settings)
    at, density = thresholds(own)
    chance = np.exp(log_above(at * own.query / (2 * own.count)))
    weights = np.exp(density - logsumexp(density))
    short = float((binom.cdf(own.count - 1, values, chance) * weights).sum())
    if own.suffices:
        assert short < SECOND_PASS
    answer = SVT.asked(SVT.arguments(settings), Facts(numbers=values, scalars=0))
    assert any(line.delta == SECOND_PASS for line in answer.lines) == own.suffices
    assert any("several passes" in one for one in answer.notes) != own.suffices


def test_both_numbers_stand_beside_each_other_over_one_round_and_all() -> None:
    answer = SVT.asked(SVT.arguments({}), Facts(numbers=LENET, scalars=0, rounds=3))
    deltas = {(line.relation, line.rounds): set() for line in answer.lines}
    for line in answer.lines:
        deltas[line.relation, line.rounds].add(line.delta)
    assert deltas == {
        (relation, rounds): {0.0, rounds * SECOND_PASS, 1e-5}
        for relation in ("replace", "zero-out")
        for rounds in (1, 3)
    }
    for line in answer.lines:
        assert (line.claimed is not None) == (line.delta == 0)


@pytest.mark.parametrize("delta", [1e-10, 1.5e-9])
def test_a_delta_that_leaves_nothing_for_a_second_pass_is_that_of_releases_alone(delta: float, second: Any) -> None:
    answer = SVT.asked(SVT.arguments({}), Facts(numbers=LENET, scalars=0, delta=delta))
    last = next(line for line in answer.lines if line.relation == "replace" and line.delta == delta)
    own = budget(LENET)
    exact = second.laplace(0.1, 6171, delta, own.choice("replace"))
    assert exact <= last.epsilon <= 1.001 * exact


def test_budgets_of_its_own_are_split_as_nvflare_splits_them() -> None:
    own = budget(1000, epsilon=1.0, epsilon_query=0.75, epsilon_release=5.0, noise_var=-1)
    assert (own.threshold, own.query, own.release) == (0.25, 0.75, 5.0)
    assert own.choice("replace") == pytest.approx(0.25 + 10 * 0.75)
    for wrong in (
        {"epsilon_threshold": 0.2},
        {"epsilon_query": 0.1},
        {"epsilon_threshold": 0.05, "epsilon_query": 0.06},
    ):
        with pytest.raises(UsageError, match="add up to epsilon"):
            budget(1000, **wrong)
