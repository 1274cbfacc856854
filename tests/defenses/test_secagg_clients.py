"""secagg_ddp with clients that differ: each moves by its own clip, noise, learning rate and number of local steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, Defense, MaterialisedGradients, PrivacyFacts, RoundContext
from harness.privacy.distributed_noise import sum_sigma

CLIENTS, BATCH, ETA, STEPS = 6, 3, 0.05, 4
LAYOUT = Layout(("a", "b"), ((3000,), (1000,)))
COMMON = {"mechanism": "gaussian", "mode": "paper", "clip": 2.0, "sigma": 0.5}


def secure(**settings: Any) -> Defense:
    return build(DEFENSES, "secagg_ddp", COMMON | settings)


def updates(defense: Defense, values: Tensor, scale: float = 1.0, steps: int = STEPS) -> tuple[Tensor, RoundContext]:
    """The clients' updates (N, P) after the round's local steps, and the round's context."""
    cohort = Cohort(CLIENTS, CLIENTS, 5, steps, BATCH)
    keys = tuple((0, client) for client in range(len(values)))
    made = torch.zeros(len(values), LAYOUT.total, dtype=torch.float64)
    for step in range(steps):
        now = RoundContext(3, step, ETA, cohort, LAYOUT, keys, noise_scale=scale, clients=tuple(range(len(values))))
        made -= ETA * defense.client_step(MaterialisedGradients(values, LAYOUT.sizes), now).step.double()
    return made, now


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (1.0,) * 6),
        ({"clips": "1,0.5"}, (1.0, 0.5, 1.0, 0.5, 1.0, 0.5)),
        ({"learning_rates": [1.0, 2.0, 3.0]}, (1.0, 2.0, 3.0, 1.0, 2.0, 3.0)),
        ({"local_steps": "4,1"}, (1.0, 0.25, 1.0, 0.25, 1.0, 0.25)),
        ({"noises": "1,9"}, (1.0,) * 6),
    ],
)
def test_signal_follows_the_clients_own_settings(settings: dict[str, Any], expected: tuple[float, ...]) -> None:
    values = 5 * torch.randn(1, 1, LAYOUT.total, generator=torch.Generator().manual_seed(1)).expand(CLIENTS, BATCH, -1)
    made, _ = updates(secure(**settings), values, scale=0.0)
    whole = ETA * STEPS * 2.0  # every gradient is longer than the clip
    assert made.norm(dim=1).tolist() == pytest.approx([factor * whole for factor in expected], rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"noises": "1,3"}, (1, 3)),
        ({"learning_rates": "2,1"}, (2, 1)),
        ({"local_steps": "1,4"}, (0.5, 1)),
        ({"clips": "5,1"}, (1, 1)),
        ({"noises": "1,3", "learning_rates": "1,1,2", "local_steps": "4,4,1"}, (1, 3, 1)),
    ],
)
def test_noise_follows_the_clients_own_settings(settings: dict[str, Any], expected: tuple[float, ...]) -> None:
    made, _ = updates(secure(**settings), torch.zeros(CLIENTS, BATCH, LAYOUT.total))
    common = ETA / BATCH * 0.5 * 2.0 / CLIENTS**0.5 * STEPS**0.5
    for client, factor in enumerate(expected):
        found = float(made[client].std())
        assert found == pytest.approx(factor * common, rel=0.06) and found != pytest.approx(1.2 * factor * common, 0.06)


def test_the_sum_is_that_of_the_clients_updates() -> None:
    defense = secure(clips="1,4", noises="1,2", learning_rates="3,1", local_steps="4,2")
    made, now = updates(defense, torch.randn(CLIENTS, BATCH, LAYOUT.total))
    torch.testing.assert_close(defense.sum_securely(made, now), made.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("settings", "bound"), [({}, 2.0), ({"clips": "1,2"}, None), ({"local_steps": "1,2"}, None)])
def test_an_attacker_is_told_no_common_bound_where_there_is_none(settings: dict[str, Any], bound: float | None) -> None:
    found = secure(**settings).clipping_at("T1.out", ETA)
    assert found is not None and (found.bound, found.grouping) == (bound, "whole")


def test_what_differs_is_named() -> None:
    assert "clients in turn" not in secure().units()
    assert (
        secure(clips="1,2.5", local_steps="3,1")
        .units()
        .endswith("; clients in turn have 1, 2.5 times the clip and 3, 1 local steps")
    )


def stated(**settings: Any) -> dict[str, tuple[float | None, float | None]]:
    facts = PrivacyFacts(Cohort(CLIENTS, CLIENTS, 5, STEPS, BATCH), 2, rate=0.1, parameters=4000)
    return {one.view: (one.claimed_epsilon, one.epsilon) for one in secure(sigma=8.0, **settings).statements(facts)}


@pytest.mark.parametrize(
    ("settings", "claim", "own"),
    [
        ({"noises": "2"}, -1, -1),
        ({"clips": "2"}, 1, 1),
        ({"learning_rates": "7"}, 0, 0),
        ({"learning_rates": "1,2"}, 1, 0),
        ({"local_steps": "2"}, -1, -1),
        ({"local_steps": "2,4"}, 1, 0),
    ],
)
def test_statements_follow_the_differences(settings: dict[str, Any], claim: int, own: int) -> None:
    """More (1), as much (0) or less (-1) than where nothing differs."""
    plain, found = stated()["server"], stated(**settings)["server"]
    for place, sign in enumerate((claim, own)):
        if sign == 0:
            assert found[place] == pytest.approx(plain[place], rel=1e-6)
        else:
            assert sign * (found[place] - plain[place]) > 0.01 * plain[place]


def test_resting_clients_add_no_noise_to_the_claim_under_fixed_batches() -> None:
    """An example is in one step of a round, but in which one is unknown, and half of the clients rest in some."""
    facts = PrivacyFacts(
        Cohort(CLIENTS, CLIENTS, 5, STEPS, BATCH), 2, example_sampler="none", rate=1 / STEPS, parameters=4000
    )

    def server(**settings: Any) -> tuple[float | None, float | None]:
        one = secure(sigma=8.0, **settings).statements(facts)[1]
        return one.claimed_epsilon, one.epsilon

    (claim, own), (same_claim, same_own) = server(local_steps="2,4"), server()
    assert claim > 1.2 * same_claim and own == pytest.approx(same_own)


def test_the_claim_is_that_of_the_worst_placed_client() -> None:
    """A loud neighbour's noise helps, its longer steps count as noise too, and its own records have the larger clip."""
    facts = PrivacyFacts(Cohort(CLIENTS, CLIENTS, 5, 1, BATCH), 2, rate=0.1, parameters=4000)
    defense = secure(sigma=8.0, clips="1,2", noises="1,2", learning_rates="1,3")
    parties = defense.differences.parties(2.0, 1.0, 0.1, facts)
    total = sum((party.weight * party.noise) ** 2 for party in parties) ** 0.5
    assert sum_sigma(parties) == pytest.approx(total / max(party.weight * party.clip for party in parties))


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"mechanism": "skellam", "clips": "1,2"}, "share no grid; use mechanism=gaussian"),
        ({"clips": "1,0"}, "clips"), ({"noises": "1,-2"}, "noises"), ({"learning_rates": "1,inf"}, "learning_rates"),
        ({"local_steps": "0"}, "local_steps"), ({"local_steps": "1,x"}, "local_steps"),
    ],
)  # fmt: skip
def test_impossible_differences_are_refused(settings: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        secure(**settings)


@pytest.mark.parametrize(
    ("settings", "clients", "fix"),
    [
        ({"local_steps": f"1,{STEPS + 1}"}, CLIENTS, "client 1 is to take 5 local steps of a round's 4"),
        ({"clips": "1,2"}, 2 * CLIENTS, "must all take part in every round, here 6 of 12 do"),
    ],
)
def test_differences_that_do_not_fit_the_run_are_refused(settings: dict[str, Any], clients: int, fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        secure(**settings).statements(PrivacyFacts(Cohort(clients, CLIENTS, 5, STEPS, BATCH), 2, parameters=4000))
