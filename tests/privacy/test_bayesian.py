"""Bayesian accounting: Theorem 3 by quadrature, the estimator by hand, levels, and what it may not be called."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, norm, t

from harness.base.errors import UsageError
from harness.privacy.bayesian import (
    ASSUMPTIONS,
    Samples,
    bayesian_epsilon,
    client_samples,
    epsilon_of_costs,
    estimated_costs,
    instance_samples,
    joint_samples,
    log_exponentials,
)

FEW = tuple(range(1, 33))
DELTA = 1e-5


def constant(distance: float = 1.0, sigma: float = 6.0, q: float = 0.1, count: int = 20) -> Samples:
    return Samples(np.full(count, distance), sigma, q)


def run(rounds: list, level: str = "client", **options: object):
    return bayesian_epsilon(rounds, level, DELTA, lambdas=FEW, **options)


@pytest.mark.parametrize(("q", "distance", "lam"), [(0.1, 1.0, 1), (0.1, 2.0, 4), (0.4, 0.7, 7)])
def test_left_is_the_divergence_of_the_mixture(q: float, distance: float, lam: int) -> None:
    """With the unit from without it, by integration over the noise."""

    def integrand(x: float) -> float:
        return norm.pdf(x) * ((1 - q) + q * math.exp(distance * x - distance**2 / 2)) ** (lam + 1)

    direct = math.log(quad(integrand, -12, 20)[0])
    assert log_exponentials(constant(distance, 1.0, q), "L", [lam])[0, 0] == pytest.approx(direct, rel=1e-6)


def test_right_by_the_papers_formula() -> None:
    q, distance, lam = 0.2, 1.5, 3
    k = np.arange(lam + 1)
    right = math.log(binom.pmf(k, lam, q) @ np.exp((k * k + k) * distance**2 / 2))
    assert log_exponentials(constant(distance, 1.0, q), "max", [lam])[0, 0] == pytest.approx(right)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(distance=st.floats(0, 3), lam=st.integers(1, 40))
def test_without_sampling_both_directions_agree(distance: float, lam: int) -> None:
    for direction in ("L", "max"):
        found = log_exponentials(constant(distance, 1.0, 1.0), direction, [lam])[0, 0]
        assert found == pytest.approx(lam * (lam + 1) * distance**2 / 2, abs=1e-12)


def test_the_papers_direction_is_not_the_moments_accountant() -> None:
    """Constant distances: L gives the moments accountant's epsilon, the paper's maximum a third more."""
    rounds = [[constant()]] * 100
    left, both = run(rounds, bound=1.0, direction="L"), run(rounds, bound=1.0)
    assert left.epsilon == pytest.approx(left.moments_epsilon, rel=1e-9)
    assert (left.epsilon, both.epsilon) == (pytest.approx(0.849, abs=1e-3), pytest.approx(1.119, abs=1e-3))


def test_the_right_direction_is_linear_in_the_rate() -> None:
    for direction, power in (("L", 2), ("max", 1)):
        small, smaller = (
            log_exponentials(constant(q=q), direction, [1])[0, 0] for q in (1e-3, 1e-4)
        )  # a tenth of the rate costs a tenth, or a hundredth
        assert math.log10(small / smaller) == pytest.approx(power, abs=0.01)


def test_the_estimator_by_hand() -> None:
    values = np.array([1.0, 1.2, 1.5, 1.1])
    bound = values.mean() + t.ppf(1 - 0.01, 3) / math.sqrt(3) * values.std(ddof=0)
    found = estimated_costs(np.log(values)[None], 0.01)[0]
    assert found == pytest.approx(math.log(bound))
    assert found != pytest.approx(math.log(values.mean() + t.ppf(1 - 0.01, 3) / 2 * values.std(ddof=0)), rel=1e-3)


def test_logs_do_not_overflow() -> None:
    logs = np.array([[5000.0, 5001.0, 5002.0]])
    assert estimated_costs(logs, 1e-3)[0] == pytest.approx(5000 + estimated_costs(logs - 5000, 1e-3)[0])


def test_more_samples_need_less_caution() -> None:
    draws = np.random.default_rng(0).uniform(0, 1, 100_000)[None]
    gaps = [
        estimated_costs(draws[:, :m], 1e-6)[0] - math.log(np.exp(draws[0, :m]).mean()) for m in (100, 3000, 100_000)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 5e-3


@pytest.mark.parametrize("failure", [0.2, 0.05])
def test_the_bound_fails_as_often_as_it_says(failure: float) -> None:
    rounds = np.random.default_rng(1).uniform(0, 1, (4000, 50))
    truth = math.log(math.e - 1)  # of E exp(U)
    below = np.mean(estimated_costs(rounds, failure) < truth)
    assert 0.6 * failure < below < 1.4 * failure


def test_spread_lowers_epsilon() -> None:
    rng = np.random.default_rng(0)
    spread = [[Samples(rng.uniform(0.2, 1, 1000), 6.0, 0.1)] for _ in range(20)] * 5
    found = bayesian_epsilon(spread, "client", DELTA, lambdas=(16, 20, 24, 28), bound=1.0, failure=DELTA)
    assert found.epsilon == pytest.approx(0.727, abs=0.02)
    assert found.epsilon < run([[constant()]] * 100).epsilon


def test_every_estimate_may_fail() -> None:
    rounds = [[constant()] * 3] * 5
    found = run(rounds, "instance parallel")
    assert found.failure == pytest.approx(0.1 * DELTA / (5 * 3 * len(FEW)))
    assert found.delta_total == pytest.approx(1.1 * DELTA)
    told = run(rounds, "instance parallel", failure=1e-7)
    assert told.delta_total == pytest.approx(DELTA + 5 * 3 * len(FEW) * 1e-7)


def test_levels() -> None:
    near, far = constant(0.5, count=5), constant(1.0, count=5)
    cost = {
        name: estimated_costs(log_exponentials(one, "max", FEW), 1e-9) for name, one in (("near", near), ("far", far))
    }
    options = {"failure": 1e-9}
    by_sum = run([[near, far]], "instance sequential", **options).epsilon
    by_maximum = run([[near, far]], "instance parallel", **options).epsilon
    assert by_sum == pytest.approx(epsilon_of_costs(cost["near"] + cost["far"], DELTA, FEW))
    assert by_maximum == pytest.approx(epsilon_of_costs(cost["far"], DELTA, FEW))
    assert run([[far]] * 2, "client", **options).epsilon == pytest.approx(epsilon_of_costs(2 * cost["far"], DELTA, FEW))


def test_leaving_a_client_out_of_the_mean() -> None:
    updates = np.random.default_rng(0).normal(size=(6, 4))
    found = client_samples(updates, 0.1, 0.3)
    direct = [np.linalg.norm(updates.mean(axis=0) - np.delete(updates, i, axis=0).mean(axis=0)) for i in range(6)]
    assert found.distances == pytest.approx(direct)
    fixed = client_samples(updates, 0.1, 0.3, divisor=10)
    assert fixed.distances == pytest.approx(np.linalg.norm(updates, axis=1) / 10)
    assert client_samples(np.linalg.norm(updates, axis=1), 0.1, 0.3, 10).distances == pytest.approx(fixed.distances)


def test_instances_and_joint() -> None:
    one = instance_samples(np.array([1.0, 2.0]), 0.5, 10, 200)
    assert (list(one.distances), one.sigma, one.q) == ([0.1, 0.2], 0.5, 0.05)
    joint = joint_samples(np.array([1.0, 2.0]), 0.5, 4, 0.2)
    assert (list(joint.distances), joint.sigma, joint.q) == ([0.25, 0.5], 0.25, 0.2)


def test_never_called_dp() -> None:
    row = run([[constant()]], bound=1.0).row()
    assert row["guarantee"] == "BDP"
    assert row["assumptions"] == ASSUMPTIONS and "no outlier" in ASSUMPTIONS[0]
    assert run([[constant()]]).moments_epsilon is None


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"rounds": []}, "every round"), ({"rounds": [[]]}, "every round"),
        ({"rounds": [[constant(), constant()]]}, "one estimate per round"),
        ({"level": "joint", "local_steps": 2}, "take FedSGD"), ({"bound": 0.5}, "exceeds the bound"),
        ({"lambdas": ()}, "whole numbers"), ({"lambdas": (1.5,)}, "whole numbers"), ({"direction": "R"}, "max, L"),
        ({"level": "user"}, "choose client"), ({"delta": 0.0}, "delta must lie"), ({"failure": 0.0}, "failure"),
    ],
)  # fmt: skip
def test_mistakes(wrong: dict, fix: str) -> None:
    arguments = {"rounds": [[constant()]], "level": "client", "delta": DELTA} | wrong
    with pytest.raises(UsageError, match=fix):
        bayesian_epsilon(**arguments)


@pytest.mark.parametrize(
    "wrong",
    [{"distances": [1.0]}, {"distances": [1.0, math.nan]}, {"distances": [-1.0, 1.0]}, {"sigma": 0.0}, {"q": 0}],
)
def test_impossible_samples(wrong: dict) -> None:
    with pytest.raises(UsageError):
        Samples(**({"distances": [1.0, 2.0], "sigma": 1.0, "q": 0.1} | wrong))
