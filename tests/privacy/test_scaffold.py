"""DP-SCAFFOLD: the cells and trade-offs of the paper's script, and what holds instead."""

from dataclasses import replace

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.privacy import GaussianRelease, steps_within
from harness.privacy.events import ledger
from harness.privacy.renyi_curves import amplify_without_replacement
from harness.privacy.scaffold import MODES, VIEWERS, Scaffold, scaffold_accountant, scaffold_epsilon, scaffold_event

SYNTHETIC = Scaffold(60.0, 100, 4000, 50, 400)


@pytest.mark.parametrize(
    ("numbers", "viewer", "expected"),
    [
        ((60, 100, 4000, 5, 100), "third party", 6.67), ((60, 100, 4000, 50, 400), "third party", 12.91),
        ((60, 100, 4000, 100, 400), "server", 14.68), ((30, 40, 2000, 50, 400), "third party", 11.36),
        ((30, 40, 2000, 5, 400), "server", 11.65), ((30, 60, 800, 50, 100), "third party", 7.15),
    ],
)  # fmt: skip
def test_the_papers_cells(numbers: tuple, viewer: str, expected: float) -> None:
    assert scaffold_epsilon(Scaffold(*numbers), viewer, "paper") == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize(
    ("sigma", "steps", "target", "expected"), [(10, 40, 3.0, 72), (160, 5, 3.0, 507), (10, 20, 5.0, 1615)]
)
def test_the_trade_off(sigma: float, steps: int, target: float, expected: int) -> None:
    run = Scaffold(sigma, 100, 4000, steps, 1, user_rate=0.05)
    accountant = scaffold_accountant("paper")
    found = steps_within(
        accountant, lambda count: scaffold_event(replace(run, rounds=count), mode="paper"), target, run.delta, "filter"
    )
    assert found.rounds == expected
    beyond = scaffold_event(replace(run, rounds=expected + 1), mode="paper")
    assert accountant.epsilon(beyond, run.delta).epsilon > target


def test_more_noise_stops_helping_the_paper() -> None:
    """The bound tends to ln(1 + sum of 2 C(a, j) q^j) / (a - 1): with any noise some cost is left."""
    plateau = scaffold_epsilon(replace(SYNTHETIC, sigma=1e6), mode="paper")
    assert plateau == pytest.approx(scaffold_epsilon(replace(SYNTHETIC, sigma=1e9), mode="paper"))
    assert plateau > 5
    assert scaffold_epsilon(replace(SYNTHETIC, sigma=1e6), mode="tight") < 0.01
    order = 3
    limit = np.log(1 + 2 * 0.2**3) / (order - 1)
    assert amplify_without_replacement(np.full(order, 1e-15), 0.2, [order])[0] == pytest.approx(limit)


def test_modes_by_what_they_assume() -> None:
    paper, tight, proven = (scaffold_epsilon(SYNTHETIC, mode=mode) for mode in ("paper", "tight", "proven"))
    assert tight < proven < paper / 10
    one_step = replace(SYNTHETIC, steps=1)
    assert scaffold_epsilon(one_step, mode="tight") < scaffold_epsilon(one_step, mode="proven")
    averaging = replace(one_step, variates=False)
    assert scaffold_epsilon(averaging, mode="tight") == scaffold_epsilon(averaging, mode="proven")
    for mode in ("paper", "tight", "proven"):
        assert scaffold_epsilon(SYNTHETIC, "server", mode) > scaffold_epsilon(SYNTHETIC, "third party", mode)


def test_the_server_sees_one_user_every_round() -> None:
    (release,) = ledger(scaffold_event(SYNTHETIC, "server")).releases
    assert release == GaussianRelease(120.0, 0.2, "poisson", count=50 * 400)


def test_everybody_every_round_is_plain_noise() -> None:
    everybody = replace(SYNTHETIC, user_rate=1.0, data_rate=1.0)
    accountant = scaffold_accountant("paper")
    plain = accountant.epsilon(GaussianRelease(1200.0, count=50 * 400), 1e-5).epsilon
    assert accountant.epsilon(scaffold_event(everybody), 1e-5).epsilon == pytest.approx(plain)


def test_claims_are_nominal() -> None:
    def nominal(run: Scaffold, viewer: str, mode: str) -> bool:
        return scaffold_accountant(mode).epsilon(scaffold_event(run, viewer, mode), run.delta).nominal

    found = {(viewer, mode): nominal(SYNTHETIC, viewer, mode) for viewer in VIEWERS for mode in MODES}
    assert {cell for cell, claimed in found.items() if claimed} == {("third party", "paper"), ("third party", "tight")}
    assert not nominal(replace(SYNTHETIC, steps=1, variates=False), "third party", "tight")


@pytest.mark.parametrize("mode", ["paper", "tight", "proven"])
@pytest.mark.parametrize("viewer", ["third party", "server"])
def test_warming_up_is_charged(mode: str, viewer: str) -> None:
    warm = replace(SYNTHETIC, rounds=380, warm_up=20)
    assert scaffold_event(warm, viewer, mode) == scaffold_event(SYNTHETIC, viewer, mode)
    cold = scaffold_epsilon(replace(warm, warm_up=0), viewer, mode)
    assert cold < scaffold_epsilon(warm, viewer, mode)


@pytest.mark.parametrize(
    "wrong", [{"sigma": 0.0}, {"steps": 0}, {"user_rate": 0.0}, {"data_rate": 1.5}, {"user_rate": 0.001}]
)
def test_impossible_runs(wrong: dict) -> None:
    with pytest.raises(UsageError):
        replace(SYNTHETIC, **wrong)


def test_unknown_words() -> None:
    with pytest.raises(UsageError, match="choose paper, tight, proven"):
        scaffold_event(SYNTHETIC, mode="loose")
    with pytest.raises(UsageError, match="choose third party, server"):
        scaffold_event(SYNTHETIC, "client")
