"""Global DP: Fed-SDP at the server with whole vectors, a median that streams, and two rules that stop training."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, Defense, PrivacyFacts, RoundContext, State
from harness.defenses.global_dp import median_norm, norm_counts

K, P = 8, 50
LAYOUT = Layout(("a", "b"), ((40,), (10,)))
CONTEXT = RoundContext(3, 0, 0.05, Cohort(clients_per_round=K), LAYOUT, tuple((0, client) for client in range(K)))
UPDATES = torch.randn(K, P, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FACTS = PrivacyFacts(Cohort(clients=100, clients_per_round=10, rounds=50), tensors=4)


def defense_of(settings: dict[str, Any], name: str = "global_dp") -> Defense:
    return build(DEFENSES, name, settings)


def aggregate(defense: Defense, context: RoundContext = CONTEXT, updates: Tensor = UPDATES) -> Tensor:
    received = defense.server_receive(defense.client_message(updates, context), context)
    return defense.aggregate(received.sum(0), context)


def test_it_is_fed_sdp_at_the_server_over_whole_vectors() -> None:
    settings = {"clip": 3, "sigma": 2}
    sdp = defense_of(settings | {"clipping": "whole"}, "fed_sdp")
    assert torch.equal(aggregate(defense_of(settings)), aggregate(sdp))
    ours, theirs = (one.statements(FACTS) for one in (defense_of(settings), sdp))
    assert [(a.view, a.guarantee, a.epsilon) for a in ours] == [(b.view, b.guarantee, b.epsilon) for b in theirs]


def test_without_noise_and_bound_it_is_federated_averaging_as_is_fed_sdp() -> None:
    free = {"clip": math.inf, "sigma": 0}
    torch.testing.assert_close(aggregate(defense_of(free)), UPDATES.mean(0), rtol=1e-10, atol=0)
    torch.testing.assert_close(aggregate(defense_of(free, "fed_sdp")), UPDATES.mean(0), rtol=1e-10, atol=0)


def test_the_median_of_one_round_is_the_bound_of_the_next() -> None:
    defense, server = defense_of({"bound": "median", "clip": 2, "sigma": 0}), {}
    expected = [2.0, UPDATES.norm(dim=1).median().item()]
    for now in range(2):
        context = replace(CONTEXT, round=now, server=server, sent={})
        received = defense.server_receive(defense.client_message(UPDATES, context), context)
        assert received.norm(dim=1).max().item() == pytest.approx(expected[now], rel=0.025)
        sums = {name: values.sum(0) for name, values in context.sent.items()}
        defense.aggregate(received.sum(0), replace(context, sent=sums))


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("clients", [1, 2, 99])
def test_the_median_streams(size: float, clients: int) -> None:
    updates = size * torch.rand(clients, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = norm_counts(updates).sum(0)
    streamed = sum((norm_counts(part).sum(0) for part in updates.split(7)), torch.zeros_like(whole))
    assert torch.equal(whole, streamed)
    assert median_norm(whole).item() == pytest.approx(updates.norm(dim=1).median().item(), rel=0.025)


def test_a_median_is_nominal() -> None:
    (statement,) = defense_of({"bound": "median"}).statements(FACTS)
    assert (statement.guarantee, statement.epsilon) == ("none", None)
    fixed = defense_of({}).statements(FACTS)[0]
    assert statement.claimed_epsilon == fixed.claimed_epsilon
    assert "nominal" in statement.notes


@cache
def stops_before(**settings: float) -> int:
    """The first round that would not be run."""
    defense = defense_of({"sigma": 1.5, **settings})
    low, high = 1, 256
    while low < high:
        middle = (low + high) // 2
        stopped = defense.finished(replace(FACTS, cohort=replace(FACTS.cohort, rounds=middle)))
        low, high = (low, middle) if stopped else (middle + 1, high)
    return low


def test_it_stops_before_the_epsilon_is_exceeded() -> None:
    first_left_out = stops_before(epsilon=3)
    spent = [
        defense_of({"sigma": 1.5}).statements(replace(FACTS, cohort=replace(FACTS.cohort, rounds=rounds)))[0].epsilon
        for rounds in (first_left_out - 1, first_left_out)
    ]
    assert spent[0] <= 3 < spent[1]


def test_it_stops_for_the_view_that_costs_most() -> None:
    """A client that sat out knows a higher rate than a third party does."""
    facts = replace(FACTS, client_sampler="without-replacement", cohort=Cohort(6, 3, 4))
    third_party, _, client = (one.epsilon for one in defense_of({"sigma": 1.5}).statements(facts))
    between = (third_party + client) / 2
    assert third_party < between < client
    assert defense_of({"sigma": 1.5, "epsilon": between}).finished(facts)
    assert not defense_of({"sigma": 1.5, "epsilon": client * 1.01}).finished(facts)


@pytest.mark.slow
def test_it_stops_before_the_delta_is_exceeded() -> None:
    strict, loose = (stops_before(epsilon=3, max_delta=delta) for delta in (1e-6, 1e-3))
    assert strict < stops_before(epsilon=3, max_delta=1e-5) < loose
    # Both rules ask the same question at the same pair.
    assert stops_before(epsilon=3, max_delta=1e-5) == stops_before(epsilon=3)


def test_the_reason_names_the_round_and_the_budget() -> None:
    facts = replace(FACTS, cohort=replace(FACTS.cohort, rounds=1500))
    by_epsilon = defense_of({"sigma": 1.5, "epsilon": 3}).finished(facts)
    assert by_epsilon and "round 1500 would spend epsilon" in by_epsilon and "above 3" in by_epsilon
    by_delta = defense_of({"sigma": 1.5, "epsilon": 3, "max_delta": 1e-5}).finished(facts)
    assert by_delta and "delta above 1e-05 for epsilon 3" in by_delta


def test_without_a_budget_it_never_stops() -> None:
    assert defense_of({"sigma": 0.01}).finished(FACTS) is None
    assert defense_of({}, "fed_sdp").finished(FACTS) is None


def test_the_server_keeps_nothing_with_a_fixed_bound() -> None:
    server: State = {}
    context = replace(CONTEXT, server=server, sent={})
    aggregate(defense_of({}), context)
    assert not server and not context.sent
