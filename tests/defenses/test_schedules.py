"""Decay policies of the noise multiplier against the values of docs/defenses.md."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.privacy.schedules import NoiseSchedule, Policy, Space

DECAYING = ["linear", "staircase", "exponential"]


def schedule(policy: Policy, space: Space, rounds: int = 100, steps: int = 100) -> NoiseSchedule:
    return NoiseSchedule(policy, space, 15.0, 4.85, rounds, steps)


@pytest.mark.parametrize(
    ("policy", "first", "last"),
    [("linear", 15.76, 3.71), ("staircase", 13.55, 3.85), ("exponential", 15.78, 2.99)],
)
def test_eps_space_endpoints(policy: Policy, first: float, last: float) -> None:
    sigma = schedule(policy, "eps").sigma
    assert (sigma(0, 0), sigma(99, 99)) == (pytest.approx(first, abs=0.005), pytest.approx(last, abs=0.006))


@pytest.mark.parametrize(
    ("policy", "epsilon"),
    [
        ("linear", lambda k: k / 1e4 + 0.30747),
        ("staircase", lambda k: 0.1 * (k // 1000) + 0.35747),
        ("exponential", lambda k: math.exp(1.664 * k / 1e4 - 1.1809)),
    ],
)
def test_eps_space_is_the_classical_gaussian_of_the_step_epsilon(
    policy: Policy, epsilon: Callable[[int], float]
) -> None:
    sigma = schedule(policy, "eps").sigma
    for step in (0, 1, 99, 999, 1000, 2999, 3000, 6999, 7000, 9999):
        expected = math.sqrt(2 * math.log(125_000)) / epsilon(step)
        assert sigma(*divmod(step, 100)) == pytest.approx(expected, rel=1e-9), step


@pytest.mark.parametrize("policy", DECAYING)
@pytest.mark.parametrize("rounds", [10, 30, 100])
def test_sigma_space_endpoints(policy: Policy, rounds: int) -> None:
    sigma = schedule(policy, "sigma", rounds).sigma
    assert (sigma(0), sigma(rounds - 1)) == (pytest.approx(15.0), pytest.approx(4.85))


def test_sigma_space_formulas() -> None:
    assert schedule("linear", "sigma").sigma(33) == pytest.approx(15 - 10.15 / 3)
    assert schedule("exponential", "sigma").sigma(33) == pytest.approx(15 * (4.85 / 15) ** (1 / 3))
    stairs = [schedule("staircase", "sigma").sigma(round_index) for round_index in range(30, 40)]
    assert stairs == [pytest.approx(15 - 10.15 / 3)] * 10


@pytest.mark.parametrize("policy", DECAYING)
@pytest.mark.parametrize("space", ["eps", "sigma"])
@pytest.mark.parametrize("rounds", [1, 3, 10, 97, 100])
def test_decaying_policies_never_rise(policy: Policy, space: Space, rounds: int) -> None:
    chosen = schedule(policy, space, rounds, steps=3)
    values = [chosen.sigma(round_index, step) for round_index in range(rounds) for step in range(3)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert values[0] > values[-1] or (space == "sigma" and rounds == 1)


@pytest.mark.parametrize("space", ["eps", "sigma"])
def test_the_cyclic_policy_starts_anew_and_never_falls_below_its_floor(space: Space) -> None:
    values = [schedule("cyclic", space).sigma(round_index) for round_index in range(100)]
    assert [values[start] for start in (0, 25, 50, 75)] == [pytest.approx(15.0)] * 4
    assert 4.85 <= min(values) < 4.95
    assert values[24] < values[25]


def test_the_fixed_policy_is_fixed_and_rounds_decide_in_sigma_space() -> None:
    assert {schedule("fixed", "eps").sigma(round_index) for round_index in range(100)} == {15.0}
    chosen = schedule("linear", "sigma")
    assert chosen.sigma(5, 0) == chosen.sigma(5, 99)
    assert replace(chosen, rounds=6).sigma(5) == pytest.approx(4.85)
