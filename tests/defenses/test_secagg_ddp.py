"""secagg_ddp: the sum is that of what the clients encoded, its noise and each share of the size stated."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, Defense, MaterialisedGradients, PrivacyFacts, RoundContext
from harness.privacy.distributed_noise import SEVERAL_STEPS

CLIENTS, BATCH, ETA = 6, 3, 0.05
LAYOUT = Layout(("a", "b"), ((1500,), (500,)))
WAYS: list[dict[str, Any]] = [
    {}, {"mode": "paper"}, {"mechanism": "gaussian", "mode": "paper"}, {"mechanism": "poisson_binomial"},
    {"mechanism": "poisson_binomial", "mode": "paper"},
]  # fmt: skip


def context(steps: int = 1, scale: float = 1.0, clients: int = CLIENTS, seed: int = 0) -> RoundContext:
    keys = tuple((seed, client) for client in range(clients))
    cohort = Cohort(20, CLIENTS, 5, steps, BATCH)
    return RoundContext(3, 0, ETA, cohort, LAYOUT, keys, noise_scale=scale)


def gradients(clients: int = CLIENTS, batch: int = BATCH) -> Tensor:
    return torch.randn(clients, batch, LAYOUT.total, generator=torch.Generator().manual_seed(4))


def play(defense: Defense, place: RoundContext, values: Tensor, steps: int = 1) -> tuple[Tensor, Tensor]:
    """The clients' updates (N, P) after some local steps, and their secure sum (P,)."""
    update = torch.zeros(len(values), LAYOUT.total, dtype=torch.float64)
    for step in range(steps):
        now = RoundContext(**{**place.__dict__, "local_step": step})
        update -= ETA * defense.client_step(MaterialisedGradients(values, LAYOUT.sizes), now).step.double()
    return update, defense.sum_securely(update, place)


def secure(**settings: Any) -> Defense:
    return build(DEFENSES, "secagg_ddp", {"clip": 1.0, **settings})


@pytest.mark.parametrize("settings", WAYS)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_sum_is_that_of_the_updates(settings: dict[str, Any], steps: int) -> None:
    updates, total = play(secure(**settings), context(steps), gradients(), steps)
    torch.testing.assert_close(total, updates.sum(0), rtol=1e-5, atol=1e-5)
    assert float(total.std()) > 1e-3


@pytest.mark.parametrize("settings", WAYS)
def test_the_protocol_gives_the_plain_sum_to_the_bit(settings: dict[str, Any]) -> None:
    totals = [play(secure(protocol=protocol, **settings), context(), gradients())[1] for protocol in ("real", "sum")]
    assert torch.equal(*totals)


@pytest.mark.parametrize("settings", WAYS)
def test_without_noise_it_is_federated_averaging_of_clipped_gradients(settings: dict[str, Any]) -> None:
    values = gradients()
    # Tosses cut what they rotate.
    rotation = settings.get("mechanism") != "poisson_binomial"
    updates, total = play(secure(**settings, rotation=rotation), context(scale=0.0), values)
    clipped = values / values.norm(dim=2, keepdim=True).clamp(min=1)
    torch.testing.assert_close(updates, -ETA * clipped.mean(1).double(), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(total, -ETA * clipped.mean(1).sum(0).double(), rtol=1e-3, atol=1e-5)


# Each mechanism with one number of steps and one scale, with all clients and without some; all pairs are slow.
@pytest.mark.parametrize(("settings", "steps", "scale"), [
    pytest.param(settings, steps, scale, marks=() if way == played else pytest.mark.slow)
    for played, (steps, scale) in enumerate(((1, 1.0), (4, 1.0), (1, 100.0)))
    for way, settings in enumerate(WAYS[:3])
])  # fmt: skip
@pytest.mark.parametrize("missing", [{}, {"colluders": 1, "dropouts": 2}])
def test_noise_is_shared_by_the_clients_that_count(
    settings: dict[str, Any], missing: dict[str, int], steps: int, scale: float
) -> None:
    """From the clients that count alone, the sum's noise has std sigma C in gradients; each adds an equal share."""
    counted = CLIENTS - sum(missing.values())
    zeros = torch.zeros(CLIENTS, BATCH, LAYOUT.total)
    defense = secure(sigma=0.5, clip=2.0, **settings, **missing)
    # One round's 2,000 numbers know their deviation to 1.6%; four rounds', to .8%.
    rounds = [play(defense, context(steps, scale, seed=seed), zeros, steps)[0] for seed in range(4)]
    unit = ETA / BATCH * 0.5 * 2.0 * scale * steps**0.5
    total = float(torch.cat([updates[:counted].sum(0) for updates in rounds]).std())
    assert total == pytest.approx(unit, rel=0.03) and total != pytest.approx(1.06 * unit, rel=0.03)
    assert float(torch.cat([updates[0] for updates in rounds]).std()) == pytest.approx(unit / counted**0.5, rel=0.03)


@pytest.mark.parametrize("scale", [0.5, 1.0, 100.0])
def test_coin_tosses_follow_the_scale(scale: float) -> None:
    zeros = torch.zeros(CLIENTS, BATCH, LAYOUT.total)
    updates, _ = play(secure(mechanism="poisson_binomial", trials=64, theta=0.2), context(scale=scale), zeros)
    bound = 2.0 / 2048**0.5
    expected = scale * ETA / BATCH * bound * BATCH**0.5 / (2 * 0.2 * 8)
    assert float(updates.std()) == pytest.approx(expected, rel=0.03)


def test_clients_of_other_seeds_have_their_own_rotation() -> None:
    """Rows of several seeds are played together, yet each decodes as if it were alone."""
    values, place = gradients(2), context(clients=2)
    mixed = RoundContext(**{**place.__dict__, "keys": ((0, 0), (1, 1))})
    both = secure().client_step(MaterialisedGradients(values, LAYOUT.sizes), mixed).step
    for row, seed in enumerate((0, 1)):
        alone = RoundContext(**{**place.__dict__, "keys": ((seed, row),), "local": {}})
        one = values[row : row + 1]
        torch.testing.assert_close(
            secure().client_step(MaterialisedGradients(one, LAYOUT.sizes), alone).step[0], both[row]
        )


@pytest.mark.parametrize(
    ("settings", "clients", "fix"),
    [
        ({}, 5, "5 clients are there for a secure sum, 6 are needed"),
        ({"dropouts": 5}, 1, "1 clients are there for a secure sum, 2 are needed"),
        ({"dropouts": 2}, 3, "raise clients_per_round"),
        ({"bits": 3}, CLIENTS, "raise bits"),
        ({"deviations": 0.5, "bits": 16}, CLIENTS, "overflows the ring of 16 bits"),
        ({"colluders": 3, "dropouts": 3}, CLIENTS, "nobody's noise is left"),
        ({"colluders": 4, "threshold": 4}, CLIENTS, "colluders hold enough shares"),
        ({"mode": "paper", "largest": 1e-6}, CLIENTS, "beyond its bound"),
        ({"threshold": 7}, CLIENTS, "threshold must be 2 to 6"),
    ],
)
def test_sums_that_would_not_hold_are_refused(settings: dict[str, Any], clients: int, fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        play(secure(**settings), context(clients=clients), gradients(clients))


def test_fewer_clients_are_welcome_as_far_as_dropouts_are_expected() -> None:
    updates, total = play(secure(dropouts=2), context(clients=4), gradients(4))
    torch.testing.assert_close(total, updates.sum(0), rtol=1e-5, atol=1e-5)


def test_it_is_not_stacked() -> None:
    with pytest.raises(UsageError, match="use it alone"):
        build(DEFENSES, "secagg_ddp+pruning", {})


def epsilons(steps: int = 1, sampler: Any = "poisson", **settings: Any) -> dict[str, tuple[Any, Any, str]]:
    facts = PrivacyFacts(
        Cohort(20, CLIENTS, 5, steps, BATCH), 2, example_sampler=sampler, rate=1 / max(steps, 10), parameters=2000
    )
    made = secure(sigma=2.0, **settings).statements(facts)
    return {one.view: (one.epsilon, one.claimed_epsilon, one.guarantee) for one in made}


@pytest.mark.parametrize("settings", [{}, {"mechanism": "poisson_binomial", "trials": 4, "theta": 0.01}])
def test_with_one_step_the_sum_is_covered_and_its_parts_less(settings: dict[str, Any]) -> None:
    found = epsilons(sampler="none", **settings)
    assert [tag for _, _, tag in found.values()] == ["sample-DDP"] * 3 + ["sample-DP local view"]
    facts = PrivacyFacts(Cohort(20, CLIENTS, 5, 1, BATCH), 2, example_sampler="none", parameters=2000)
    unproven = ["by enumeration, not proven" in one.notes for one in secure(**settings).statements(facts)]
    assert unproven == [bool(settings)] * 4
    assert found["server"][0] == found["third party"][0] < found["client"][0] < found["message"][0]
    alone = epsilons(sampler="none", **settings, colluders=CLIENTS - 1) if not settings else None
    if alone:
        # Who must count on itself alone adds all of the noise.
        assert alone["message"][0] == pytest.approx(found["server"][0], rel=1e-3)


@pytest.mark.parametrize(
    ("steps", "settings"), [(8, {}), (1, {"mode": "paper"}), (1, {"mechanism": "gaussian", "mode": "paper"})]
)
def test_where_the_theorem_ends_own_noise_is_stated_beside_the_papers_claim(
    steps: int, settings: dict[str, Any]
) -> None:
    found = epsilons(steps, **settings)
    assert found["server"][0] == found["third party"][0] == found["client"][0] == found["message"][0]
    assert found["server"][1] < found["server"][0]
    assert found["server"][2] == "sample-DP local view"
    facts = PrivacyFacts(Cohort(20, CLIENTS, 5, steps, BATCH), 2, parameters=2000)
    assert (SEVERAL_STEPS in secure(**settings).statements(facts)[1].notes) == (steps > 1)


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [
        ({"mechanism": "poisson_binomial"}, "poisson"), ({"mechanism": "poisson_binomial"}, "without-replacement"),
        ({}, "without-replacement"), ({"sigma": 0.0}, "poisson"),
    ],
)  # fmt: skip
def test_nothing_is_stated_where_nothing_is_known(settings: dict[str, Any], sampler: Any) -> None:
    facts = PrivacyFacts(Cohort(20, CLIENTS, 5, 1, BATCH), 2, example_sampler=sampler)
    assert [one.guarantee for one in secure(**settings).statements(facts)] == ["none"]


def test_noise_for_colluders_and_dropouts_keeps_the_epsilon_of_the_sum() -> None:
    plain, careful = epsilons(), epsilons(colluders=2, dropouts=1)
    assert careful["server"][0] == pytest.approx(plain["server"][0], rel=1e-3)
    assert careful["message"][0] < plain["message"][0]


@pytest.mark.parametrize("settings", [{}, {"mechanism": "poisson_binomial"}], ids=["noise", "tosses"])
def test_an_example_that_several_clients_hold_is_not_covered(settings: dict) -> None:
    facts = PrivacyFacts(Cohort(10, 10, 5, 1, 4), 2, "none", "none", parameters=8)
    defense = build(DEFENSES, "secagg_ddp", settings)
    assert any(one.guarantee != "none" for one in defense.statements(facts))
    shared = defense.statements(replace(facts, holders=3))
    assert all(one.guarantee == "none" for one in shared) and "3 clients hold one example" in shared[0].notes
