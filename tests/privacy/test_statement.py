"""Statements: the paper's epsilon beside the valid one, or none."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, PrivacyFacts
from harness.evaluation.report_cell import described, limit_of
from harness.experiment import AS_CAPTURED, cell_settings
from harness.judging.judgement import stated
from harness.models import RowModel
from harness.privacy import (
    GaussianRelease,
    NoLimit,
    NonPrivate,
    compose,
    make_accountant,
    make_statement,
    valid_epsilon,
)
from harness.privacy.account import spent
from harness.privacy.pld import gaussian_epsilon
from harness.results import CellResult
from harness.training import train_settings

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


LAYOUT = Layout(("w", "b"), ((10, 64), (10,)))
CELL: dict[str, Any] = {
    "dataset": "digits", "model": "logistic", "attack": "analytic", "tap": "T1.out", "update_model": "unroll",
    "defense": "fed_cdp", "defense_args": {"sigma": 2.0, "clipping": "whole"}, "rounds": 20, "batch_size": 8,
}  # fmt: skip
PASSES = {"epochs": 3, "client_examples": 80}
DRAWN = {"same_data": "client", "rounds_seen": 2, "client_examples": 80}
AS_IT_IS = {"weights": AS_CAPTURED, "weights_hash": "0" * 64}
#: of a capture that says nothing
UNSAID = {
    "examples": None, "epochs": None, "expected_batch_size": None, "clients_per_round": None, "state": "new",
}  # fmt: skip
#: how a client takes its examples; the sampler of its statement, and how many releases without sampling cost as much
TAKEN: dict[str, tuple[dict[str, Any], str, int | None]] = {
    "nobody says": ({"local_steps": 5}, "poisson", None),
    "3 passes": (PASSES, "none", 20 * 3),
    "a pass with a smaller last batch": ({"client_examples": 81}, "none", 20),
    "2 passes of one batch": ({"epochs": 2}, "none", 20 * 2),
    "a new batch each round": (DRAWN, "without-replacement", None),
    "new batches each round": ({**DRAWN, "local_steps": 5}, "none", 20),
    "captured": ({**AS_IT_IS, "local_steps": 5}, "none", 20 * 5),
    "captured, 3 passes": ({**AS_IT_IS, **PASSES}, "none", 20 * 3),
}  # fmt: skip


@pytest.mark.parametrize(("convention", "times"), [("sum", 1), ("per_example", math.sqrt(3)), ("mean", 3)])
def test_noise_on_a_mean_is_counted_in_the_smallest_batch_of_a_pass(convention: str, times: float) -> None:
    """Of 83 examples in batches of 8 the last 3 make a batch, whose sum has the least noise."""
    arguments = {"sigma": 2.0, "clipping": "whole", "convention": convention}
    settings = cell_settings(**CELL | {"client_examples": 83, "defense_args": arguments})
    server = settings.build_defense().statements(described(settings, LAYOUT))[1]
    mu = math.sqrt(20) / (2 * times)
    assert server.view == "server" and server.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)


@pytest.mark.parametrize("taken", TAKEN)
def test_passes_over_a_clients_own_examples_are_not_accounted_for_as_poisson_samples(taken: str) -> None:
    changes, sampler, releases = TAKEN[taken]
    settings = cell_settings(**CELL | changes)
    stated = settings.build_defense().statements(described(settings, LAYOUT))
    server = next(one for one in stated if one.view == "server")
    assert server.sampler == sampler
    if releases is not None:
        assert server.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(releases) / 2, 1e-5), rel=1e-9)
    if sampler == "without-replacement":
        assert server.adjacency == "replace"


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, 10), ({"optimizer": "sgd:momentum=0.9"}, 10), ({"optimizer": "adam"}, 1),
        ({"optimizer": "sgd:clip_grad_norm=1.0"}, 1), ({"sent_as": "bfloat16"}, 1),
    ],
)  # fmt: skip
def test_noise_adds_up_over_clients_only_in_weighted_sums_of_gradients(changes: dict[str, Any], counted: int) -> None:
    one_step = {"clients": 10, "clients_per_round": 10, "local_steps": 1, "steps_per_round": 1, **AS_IT_IS}
    settings = cell_settings(**CELL | one_step | changes)
    third, server, _ = settings.build_defense().statements(described(settings, LAYOUT))
    assert server.mu == pytest.approx(math.sqrt(20) / 2) and third.mu == pytest.approx(server.mu / counted**0.5)
    trained = train_settings(
        defense="fed_cdp", clients=10, clients_per_round=10, local_steps=1, examples=5, rounds=20,
        defense_args=CELL["defense_args"], optimizer=changes.get("optimizer", "sgd"),
    )  # fmt: skip
    facts = replace(trained.facts(LAYOUT, 20), sent_as=changes.get("sent_as"))
    assert trained.build_defense().statements(facts)[0].mu == pytest.approx(third.mu)


@pytest.mark.parametrize(
    ("defense", "said", "unsaid"),
    [
        (CELL["defense_args"] | {"name": "fed_cdp"}, 0.5 / math.sqrt(10), 0.5),
        ({"name": "fed_sdp", "sigma": 2.0, "clipping": "whole", "noise_at": "client"}, 1 / math.sqrt(10), 1.0),
        ({"name": "fed_sdp", "sigma": 2.0, "clipping": "whole", "noise_at": "receive"}, 1 / math.sqrt(10), 1.0),
        ({"name": "fed_sdp", "sigma": 2.0, "clipping": "whole"}, 0.5, 0.5),
        # Made for four clients: of ten, each has less weight in the mean.
        ({"name": "flower:ServerSideFixedClipping", "noise_multiplier": 1.0, "num_sampled_clients": 4}, 0.8, 2.0),
    ],
)
def test_noise_of_clients_that_a_capture_does_not_count_hides_nobody(
    defense: dict[str, Any], said: float, unsaid: float
) -> None:
    name, arguments = defense["name"], {key: value for key, value in defense.items() if key != "name"}
    given = {"defense": name, "defense_args": arguments, "local_steps": 1, "clients_per_round": 10}
    cell = cell_settings(**CELL | AS_IT_IS | given)
    found = []
    for count in (10, None):
        record = SimpleNamespace(**UNSAID | {"clients_per_round": count})
        captured = SimpleNamespace(record=record, layout=LAYOUT, counted={}, running={})
        group: Any = SimpleNamespace(cell=cell, captured=captured)
        found.append(next(one.mu for one in stated([group], []) if one.view == "third party"))
    assert np.array(found) / math.sqrt(20) == pytest.approx([said, unsaid])


def test_what_clients_carry_over_is_hidden_by_their_own_noise_alone() -> None:
    """Momentum that is kept sends a round's noisy gradient again, among other clients with other noise."""
    cell = cell_settings(**CELL | AS_IT_IS | {"local_steps": 1, "clients_per_round": 10})
    for state, counted in (("new", 10), ("carried", 1)):
        record = SimpleNamespace(**UNSAID | {"clients_per_round": 10, "state": state})
        group: Any = SimpleNamespace(
            cell=cell, captured=SimpleNamespace(record=record, layout=LAYOUT, counted={}, running={})
        )
        third = next(one for one in stated([group], []) if one.view == "third party")
        assert third.mu == pytest.approx(math.sqrt(20 / counted) / 2)


@pytest.mark.parametrize("defense", ["quantile", "flower:ClientSideFixedClipping", "tff:gaussian_fixed"])
def test_what_clients_clipped_may_be_longer_once_it_is_rounded(defense: str) -> None:
    """Every number may double: one just above half a step of the grid becomes the whole step."""
    facts = PrivacyFacts(Cohort(clients=20, clients_per_round=20, rounds=3), 2, "none", parameters=9, scalars=0)
    made = build(DEFENSES, defense, {})
    assert any(one.epsilon for one in made.statements(facts))
    rounded = made.statements(replace(facts, sent_as="float16"))
    assert {one.guarantee for one in rounded} == {"none"} and "may lengthen" in rounded[0].notes
    assert {(one.epsilon, one.told_apart) for one in rounded} == {(None, None)}
    for tap in ("T1.out", "T0.agg"):
        cell = cell_settings(**CELL | {"defense": defense, "defense_args": {}, "tap": tap, "sent_as": "float16"})
        scene: Any = SimpleNamespace(
            uncovered=None, observation=SimpleNamespace(model=RowModel("logistic", (1, 8, 8), 10), noise=None),
            truth=SimpleNamespace(indices=torch.arange(8)[None]),
        )  # fmt: skip
        limit = limit_of(cell, scene)
        assert isinstance(limit, NoLimit) and ("may lengthen" in limit.reason) == (tap == "T0.agg")


#: facts of a capture of 5 steps of batches of 8; the sampler of the statement, and the releases or the rate
CAPTURES: dict[str, tuple[dict[str, Any], str, float]] = {
    "nothing": ({}, "none", 20 * 5),
    "a pass": ({"examples": 40, "epochs": 1}, "none", 20),
    "part of a pass": ({"examples": 80, "epochs": 1}, "none", 20),
    "Poisson batches": ({"examples": 40, "epochs": 1, "expected_batch_size": 8}, "poisson", 8 / 40),
    "Poisson batches of unknown data": ({"expected_batch_size": 8}, "none", 20 * 5),
}  # fmt: skip


@pytest.mark.parametrize("facts", CAPTURES)
@pytest.mark.parametrize("travelling", [False, True])
def test_what_is_stated_of_captured_clients_follows_their_record(facts: str, travelling: bool) -> None:
    known, sampler, cost = CAPTURES[facts]
    record = SimpleNamespace(**UNSAID | known)
    running = {"layer": torch.zeros(1)} if travelling else {}
    captured = SimpleNamespace(record=record, layout=LAYOUT, counted={}, running=running)
    cell = cell_settings(**CELL | AS_IT_IS | {"local_steps": 5})
    group: Any = SimpleNamespace(cell=cell, captured=captured)
    server = next(one for one in stated([group], []) if one.view == "server")
    if travelling:
        assert server.guarantee == "none" and server.epsilon is None and "BatchNorm" in (server.notes or "")
        return
    assert server.sampler == sampler
    if sampler == "none":
        assert server.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(cost) / 2, 1e-5), rel=1e-9)
    else:
        expected, _ = valid_epsilon(GaussianRelease(2.0, cost, "poisson", count=20 * 5))
        assert server.epsilon == pytest.approx(expected, rel=1e-9)
