"""Statements: the paper's epsilon beside the valid one, or none."""

import math
from dataclasses import replace

import pytest

from harness.base.errors import UsageError
from harness.privacy import GaussianRelease, NonPrivate, compose, make_accountant, make_statement, valid_epsilon
from harness.privacy.account import spent
from harness.results import CellResult

CLAIMED = GaussianRelease(6.0, 0.01, "poisson", count=10_000)
ACTUAL = GaussianRelease(6 / math.sqrt(3), 0.01, "poisson", count=10_000)


def test_a_valid_statement() -> None:
    found = make_statement(
        "server", "sample-DP local view", "each example is clipped", actual=ACTUAL, claimed=CLAIMED, unit="example"
    )
    assert found.claimed_epsilon == pytest.approx(0.823, abs=1e-3)
    assert found.epsilon == make_accountant("pld").epsilon(ACTUAL, 1e-5).epsilon
    assert found.claimed_epsilon < found.epsilon < 1.468  # three layers at once: 1.468 by the paper's conversion
    assert (found.delta, found.conversion, found.sampler, found.adjacency) == (1e-5, "PLD", "poisson", "add/remove")


def test_a_claim_without_a_guarantee() -> None:
    found = make_statement("server", "none", "the noise follows the batch", claimed=CLAIMED, actual=ACTUAL)
    assert found.claimed_epsilon == pytest.approx(0.823, abs=1e-3)
    assert (found.epsilon, found.delta, found.guarantee) == (None, None, "none")


def test_a_guarantee_of_nothing_is_none() -> None:
    assert make_statement("server", "client-LDP", "nobody took part").guarantee == "none"


def test_rows_fit_the_result_document() -> None:
    found = make_statement("third party", "client-DP central", "noise on the sum", actual=ACTUAL, schedule="fixed")
    place = {"dataset": "d", "model": "m", "defense": "none", "tap": "T2.step", "seeds": [0], "victims": 1}
    cell = CellResult(**place, attack="cpl", privacy=[found])
    assert CellResult.model_validate_json(cell.model_dump_json()).privacy == [found]
    assert replace(found, epsilon=math.inf).epsilon is None


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="choose none"):
        make_statement("server", "client-dp", "typo", actual=ACTUAL)
    with pytest.raises(UsageError, match="cannot cover"):
        make_statement("server", "client-LDP", "no noise", actual=NonPrivate())


@pytest.mark.parametrize(
    ("event", "conversion"),
    [
        (ACTUAL, "PLD"),
        (GaussianRelease(6.0, 0.01, "poisson", "replace"), "PLD"),
        (GaussianRelease(6.0, 0.01, "without-replacement", "replace"), "PLD"),
        (compose(GaussianRelease(3 + step / 100, 0.01, "poisson") for step in range(100)), "RDP, improved"),
    ],
)
def test_the_tightest_proven_accountant(event: GaussianRelease, conversion: str) -> None:
    epsilon, name = valid_epsilon(event, 1e-5)
    assert name == conversion
    assert epsilon > 0


def test_the_least_of_the_bounds_that_hold_is_stated() -> None:
    """Over a million steps the loss distribution's buckets add up, and the Renyi bound is the smaller of the two."""
    event = GaussianRelease(30.0, 0.001, "poisson", count=10**6)
    bounds = {name: make_accountant(name).epsilon(event, 1e-5).epsilon for name in ("pld", "rdp")}
    assert bounds["rdp"] < bounds["pld"]
    assert valid_epsilon(event, 1e-5) == (bounds["rdp"], "RDP, improved")
    rows = spent([make_accountant(name) for name in bounds], event, 1e-5)
    assert [any("tighter" in note for note in row["notes"]) for row in rows] == [True, False]


def test_a_smaller_number_without_a_proof_is_not_stated() -> None:
    """Renyi curves of Poisson samples are not proven where somebody is replaced, however small they are."""
    event = GaussianRelease(30.0, 0.001, "poisson", "replace", 10**6)
    unproven = make_accountant("rdp").epsilon(event, 1e-5)
    epsilon, name = valid_epsilon(event, 1e-5)
    assert unproven.nominal and unproven.epsilon < epsilon and name == "PLD"


def test_infinite_is_none() -> None:
    assert valid_epsilon(NonPrivate()) == (None, "PLD")
    assert make_statement("server", "none", "no noise", claimed=NonPrivate()).claimed_epsilon is None
