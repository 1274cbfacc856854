"""Quantile clipping: where the bound goes, what the pair of releases costs, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, MaterialisedGradients, PrivacyFacts, RoundContext, State
from harness.defenses.quantile import Quantile, Steering
from harness.privacy import GaussianRelease, compose, make_accountant

K, P = 101, 2
LAYOUT = Layout(("a", "b"), ((1,), (1,)))
COHORT = Cohort(clients_per_round=K, batch_size=K)
KEYS = tuple((0, client) for client in range(K))
# Norms 1, 2, ..., 101, half of each vector in either tensor.
VECTORS = torch.arange(1, K + 1).double()[:, None].expand(K, P) / math.sqrt(2)


def play(settings: dict[str, Any], rounds: int, server: State, noise_scale: float = 0.0) -> Tensor:
    """The aggregates (T, P) of rounds in which every client has the same update in each."""
    defense = build(DEFENSES, "quantile", settings)
    aggregates = []
    for now in range(rounds):
        context = RoundContext(now, 0, 0.05, COHORT, LAYOUT, KEYS, noise_scale, server=server)
        total = defense.client_message(VECTORS, context).sum(0)
        sums = {name: values.sum(0) for name, values in context.sent.items()}
        aggregates.append(defense.aggregate(total, replace(context, sent=sums)))
    return torch.stack(aggregates)


@pytest.mark.parametrize("quantile", [0.25, pytest.param(0.5, marks=pytest.mark.slow), 0.9])
@pytest.mark.parametrize("first", [0.1, pytest.param(50, marks=pytest.mark.slow), 1000])
def test_the_bound_of_clients_converges_to_the_quantile(quantile: float, first: float) -> None:
    server: State = {}
    play({"quantile": quantile, "clip": first, "rate": 0.1}, 600, server)
    assert float(server["bound"]) == pytest.approx(quantile * K, abs=1)


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_bound_of_examples_converges_to_the_quantile(quantile: float) -> None:
    defense = build(DEFENSES, "quantile", {"unit": "example", "quantile": quantile, "rate": 0.1})
    local: State = {}
    for step in range(600):
        context = RoundContext(0, step, 0.05, COHORT, LAYOUT, ((0, 0), (0, 1)), 0.0, local=local)
        gradients = torch.stack([VECTORS, 10 * VECTORS])
        defense.client_step(MaterialisedGradients(gradients, LAYOUT.sizes), context)
    # Each client has its own.
    bounds = local["bound"][:, 0] / torch.tensor([1.0, 10.0])
    assert bounds.tolist() == pytest.approx([quantile * K, quantile * K], abs=1)


def test_a_share_that_noise_drives_out_of_its_range_is_held_where_it_is_so_there() -> None:
    """A sum of bits of 8, of 10 halves at most: TensorFlow Federated takes it for all of them."""
    for held, moved in ((False, math.exp(-0.2 * 0.8)), (True, math.exp(-0.2 * 0.5))):
        steering = Steering(0.5, 0.2, 10, 1.0, 1.1547, 1.0, held)
        assert float(steering.moved(torch.tensor(1.0), torch.tensor(8.0))) == pytest.approx(moved)


def test_one_step_of_the_bound_by_hand() -> None:
    server: State = {}
    play({"clip": 20, "quantile": 0.5, "rate": 0.2}, 1, server)
    assert float(server["bound"]) == pytest.approx(20 * math.exp(-0.2 * (20 / K - 0.5)))


def test_the_bound_moves_between_rounds_and_clips_the_next() -> None:
    server: State = {}
    first, second = play({"clip": 20, "rate": 0.2}, 2, server)
    norms = VECTORS.norm(dim=1)
    assert first.norm().item() == pytest.approx(norms.clamp(max=20).mean().item())
    moved = 20 * math.exp(-0.2 * (20 / K - 0.5))
    assert second.norm().item() == pytest.approx(norms.clamp(max=moved).mean().item())


def test_without_adapting_it_is_global_dp() -> None:
    """eta_C = 0 and sigma_b = inf: fixed clipping with C_0, and z_D = z."""
    settings = {"clip": 20, "sigma": 3, "rate": 0, "sigma_b": "inf"}
    noisy = play(settings, 2, {}, noise_scale=1.0)
    fixed = build(DEFENSES, "global_dp", {"clip": 20, "sigma": 3})
    for now in range(2):
        context = RoundContext(now, 0, 0.05, COHORT, LAYOUT, KEYS)
        expected = fixed.aggregate(fixed.server_receive(VECTORS, context).sum(0), context)
        torch.testing.assert_close(noisy[now], expected)


def test_the_noise_on_bits() -> None:
    """The logarithm of the bound after one round is Gaussian with standard deviation rate * sigma_b / n."""
    defense = build(DEFENSES, "quantile", {"sigma": 6, "sigma_b": 12, "rate": 0.5})
    moved = []
    for seed in range(2000):
        context = RoundContext(0, 0, 0.05, COHORT, LAYOUT, ((seed, 0),), sent={"bits": torch.zeros(())})
        defense.aggregate(torch.zeros(P), context)
        moved.append(math.log(float(context.server["bound"]) / 4))
    check_moves(torch.tensor(moved), 0.5 * 12 / K)
    # The same for examples, without any to count.
    defense = build(DEFENSES, "quantile", {"unit": "example", "sigma": 6, "sigma_b": 12, "rate": 0.5})
    context = RoundContext(0, 0, 0.05, COHORT, LAYOUT, tuple((seed, 0) for seed in range(2000)))
    defense.client_step(MaterialisedGradients(torch.zeros(2000, 1, P), LAYOUT.sizes), context)
    check_moves((context.local["bound"] / 4).log(), 0.5 * 12 / K)


def check_moves(moved: Tensor, deviation: float) -> None:
    assert moved.std().item() == pytest.approx(deviation, rel=0.05)
    assert moved.mean().item() == pytest.approx(0, abs=4 * deviation / len(moved) ** 0.5)


def test_a_round_without_clients_does_not_give_itself_away() -> None:
    defense = build(DEFENSES, "quantile", {})
    context = RoundContext(0, 0, 0.05, COHORT, LAYOUT, ((0, 0),))
    defense.aggregate(torch.zeros(P), context)
    assert context.server["bound"] != 4


@pytest.mark.parametrize(
    ("settings", "units", "expected"),
    [
        ({"sigma_b": 5}, 100, (7.5, 5)),  # the example of docs/defenses.md: n = 100, n/20 = 5
        ({}, 100, (6 / math.sqrt(0.75), 6)),
        ({}, 1000, ((1 / 36 - 1 / 10_000) ** -0.5, 50)),
        ({"sigma": 0}, 100, (0, 0)),
        ({"sigma_b": "inf", "rate": 0}, 100, (6, math.inf)),
    ],
)
@pytest.mark.parametrize("unit", ["client", "example"])
def test_multipliers(settings: dict[str, Any], units: int, expected: tuple[float, float], unit: str) -> None:
    defense = build(DEFENSES, "quantile", {"unit": unit, **settings})
    assert isinstance(defense, Quantile)
    cohort = Cohort(clients=1000, clients_per_round=units, batch_size=units)
    steering = defense.operations(cohort)[0].steering
    assert (steering.of_vectors, steering.of_bits) == pytest.approx(expected)


@pytest.mark.parametrize("sigma_b", [3.1, 5, 50])
def test_the_pair_costs_what_one_release_costs(sigma_b: float) -> None:
    defense = build(DEFENSES, "quantile", {"sigma_b": sigma_b})
    assert isinstance(defense, Quantile)
    steering = defense.operations(COHORT)[0].steering
    vectors, bits = steering.of_vectors, steering.of_bits
    # A bit is worth +-1/2, so its own multiplier is sigma_b over that.
    pair = compose([GaussianRelease(vectors), GaussianRelease(2 * bits)])
    rdp = make_accountant("rdp")
    assert rdp.epsilon(pair, 1e-5).epsilon == pytest.approx(rdp.epsilon(GaussianRelease(6.0), 1e-5).epsilon)


def test_the_statement_names_both_noises_and_the_local_view_for_examples() -> None:
    facts = PrivacyFacts(Cohort(rounds=3, steps_per_round=10), tensors=4, rate=0.1)
    clients = build(DEFENSES, "quantile", {}).statements(facts)
    assert "z_D=6.928" in clients[0].notes and "sigma_b=6" in clients[0].notes
    examples = build(DEFENSES, "quantile", {"unit": "example"}).statements(facts)
    third_party, server, client = (one.epsilon for one in examples)
    assert third_party == client < server  # neither is told who takes part


@pytest.mark.parametrize(("unit", "clipped"), [("client", {"T1.out", "T0.in", "T0.post"}), ("example", {"T2.step"})])
def test_where_an_adversary_knows_of_clipping(unit: str, clipped: set[str]) -> None:
    defense = build(DEFENSES, "quantile", {"unit": unit})
    assert all(defense.clipping_at(tap, 0.05) for tap in clipped)
    assert defense.clipping_at("T2.raw", 0.05) is None
    assert (defense.clipping_at("T1.raw", 0.05) is None) == (unit == "client")


def test_an_adversary_knows_the_bound_of_the_round() -> None:
    """What the server remembers is no secret: bits are counted privately so that it need not be."""
    known = {"bound": torch.tensor(0.5)}
    clients, examples = (build(DEFENSES, "quantile", {"unit": unit, "clip": 2.0}) for unit in ("client", "example"))
    assert clients.clipping_at("T1.out", 0.05).bound == 2.0 / 0.05
    assert clients.clipping_at("T1.out", 0.05, known).bound == 0.5 / 0.05
    assert examples.clipping_at("T2.step", 0.05, known).bound == 2.0
    stack = build(DEFENSES, "pruning+quantile", {"quantile.clip": 2.0})
    assert stack.clipping_at("T1.out", 0.05, {"quantile.bound": known["bound"]}).bound == 0.5 / 0.05
    median = build(DEFENSES, "global_dp", {"bound": "median", "clip": 2.0})
    assert median.clipping_at("T0.post", 0.05, known).bound == 0.5 / 0.05


@pytest.mark.parametrize("quantile", [0.1, 0.9])
def test_the_bound_stays_where_it_can_be_computed_with(quantile: float) -> None:
    server: State = {}
    play({"clip": 20, "rate": 3000, "quantile": quantile}, 3, server)
    assert float(server["bound"]) in (pytest.approx(1e-10), pytest.approx(1e30))
    assert build(DEFENSES, "quantile", {}).server_remembers()["bound"].problem(server["bound"].float()) is None
