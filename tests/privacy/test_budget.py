"""How long a budget lasts, and how much noise it takes."""

import pytest

from harness.base.errors import UsageError
from harness.privacy import GaussianRelease, compose, make_accountant, rounds_within, sigma_for, steps_within
from harness.privacy.rdp import Renyi
from harness.privacy.schedules import NoiseSchedule

PAPER = Renyi("mironov", "paper", grid=None)
DELTA = 1e-5


def steps(count: int, sigma: float = 6.0) -> GaussianRelease:
    return GaussianRelease(sigma, 0.01, "poisson", count=count)


def test_paper_counts_the_round_that_breaks_the_budget() -> None:
    rounds = [steps(100)] * 20
    fifth = PAPER.epsilon(steps(500), DELTA).epsilon
    by_paper = rounds_within(PAPER, rounds, fifth * 1.0001, DELTA)
    by_filter = rounds_within(PAPER, rounds, fifth * 1.0001, DELTA, "filter")
    assert (by_paper.rounds, by_filter.rounds) == (6, 5)
    assert by_paper.exceeded and by_filter.exceeded
    assert by_filter.epsilon == pytest.approx(fifth) and by_paper.epsilon > fifth * 1.0001


def test_a_budget_that_lasts() -> None:
    stop = rounds_within(PAPER, [steps(100)] * 3, 5.0, DELTA)
    assert (stop.rounds, stop.exceeded) == (3, False)


def test_a_budget_broken_at_once() -> None:
    assert rounds_within(PAPER, [steps(100)] * 3, 0.01, DELTA, "filter").rounds == 0
    assert rounds_within(PAPER, [steps(100)] * 3, 0.01, DELTA).rounds == 1


@pytest.mark.parametrize("name", ["base", "zcdp", "rdp", "pld"])
def test_steps_are_counted_to_the_step(name: str) -> None:
    accountant = make_accountant(name)
    target = accountant.epsilon(steps(777), DELTA).epsilon
    found = steps_within(accountant, steps, target * (1 + 1e-9), DELTA, "filter")
    assert found.rounds == pytest.approx(777, abs=1 if name == "pld" else 0)


@pytest.mark.parametrize(
    "name", ["base", "advanced", "zcdp", *(pytest.param(one, marks=pytest.mark.slow) for one in ("rdp", "pld"))]
)
def test_calibration_inverts_accounting(name: str) -> None:
    accountant = make_accountant(name)
    sigma = sigma_for(accountant, lambda value: steps(1000, value), 0.8, DELTA)
    assert accountant.epsilon(steps(1000, sigma), DELTA).epsilon <= 0.8
    assert accountant.epsilon(steps(1000, sigma * 0.999), DELTA).epsilon > 0.8


def test_some_targets_no_noise_reaches() -> None:
    def event(sigma: float) -> GaussianRelease:
        return GaussianRelease(sigma, 0.5, "without-replacement", "replace", 10_000)

    with pytest.raises(UsageError, match="raise the target"):
        sigma_for(Renyi("mironov", "paper"), event, 0.01, DELTA)


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan"), float("inf")])
def test_targets_are_positive(target: float) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        rounds_within(PAPER, [steps(1)], target, DELTA)
    with pytest.raises(UsageError, match="must be positive"):
        sigma_for(PAPER, lambda sigma: steps(1, sigma), target, DELTA)


def test_unknown_stop_rule() -> None:
    with pytest.raises(UsageError, match="paper, filter"):
        rounds_within(PAPER, [steps(1)], 1.0, DELTA, "never")


@pytest.mark.parametrize(("policy", "expected", "total"), [
    ("linear", 95, 0.880), ("exponential", 96, 0.901),
])  # fmt: skip
@pytest.mark.slow
def test_decaying_noise(policy: str, expected: int, total: float) -> None:
    schedule = NoiseSchedule(policy, "eps", 15.0, 4.85, 100, 100)
    rounds = [
        compose(GaussianRelease(schedule.sigma(number, step), 0.01, "poisson") for step in range(100))
        for number in range(100)
    ]
    assert rounds_within(PAPER, rounds, 0.823, DELTA).rounds == expected
    assert PAPER.spending(rounds, DELTA)(100) == pytest.approx(total, abs=1e-3)
