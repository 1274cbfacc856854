"""Noise over rounds: what adds up in the sum of the rounds so far is that of the strategy, and memory goes on."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.claims.central import buffered_strategy, root_strategy
from harness.defenses import DEFENSES, Cohort, Defense, RoundContext

P, ROUNDS = 40_000, 8
LAYOUT = Layout(("w",), ((P,),))
CONTEXT = RoundContext(0, 0, 0.1, Cohort(clients_per_round=2), LAYOUT, ((0, 0), (0, 1)))


def noises(defense: Defense, server: dict[str, Tensor], rounds: range) -> list[Tensor]:
    """What a defense adds to the sum of each round."""
    found = []
    for now in rounds:
        here = replace(CONTEXT, round=now, server=server)
        found.append(2 * defense.aggregate(torch.zeros(P, dtype=torch.float64), here))
    return found


STRATEGIES: dict[str, tuple[dict[str, Any], np.ndarray]] = {
    "jax_privacy:BandedToeplitz": ({"bands": 3}, root_strategy(3)),
    "jax_privacy:BLT": (
        {"decays": [0.5, 0.9], "scales": [0.3, 0.2]}, buffered_strategy((0.5, 0.9), (0.3, 0.2), ROUNDS)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_makes_independent_noise_of_it(name: str) -> None:
    """C x = g: numbers of one deviation, and independent of each other."""
    settings, column = STRATEGIES[name]
    defense = build(DEFENSES, name, {**settings, "noise_multiplier": 2, "clip": 1.5})
    x = torch.stack(noises(defense, {}, range(ROUNDS)))
    padded = np.concatenate([column, np.zeros(ROUNDS)])
    strategy = torch.tensor([[padded[t - s] if t >= s else 0.0 for s in range(ROUNDS)] for t in range(ROUNDS)])
    made = strategy.double() @ x
    covariance = (made @ made.T / P) / 9
    assert bool(((covariance - torch.eye(ROUNDS).double()).abs() < 0.05).all())


def test_the_noise_of_a_tree_is_of_few_nodes() -> None:
    defense = build(DEFENSES, "tff:tree_aggregation", {"noise_multiplier": 3, "restart_frequency": 6})
    x = torch.stack(noises(defense, {}, range(8)))
    for rounds in range(1, 7):
        assert float(x[:rounds].sum(0).std()) == pytest.approx(3 * math.sqrt(rounds.bit_count()), rel=0.03)
    # Its first tree has ended, and the next one begins.
    assert float(x[6:8].sum(0).std()) == pytest.approx(3, rel=0.03)


@pytest.mark.parametrize("name", [*STRATEGIES, "tff:tree_aggregation"])
def test_what_the_server_remembers_is_all_that_it_takes_to_go_on(name: str) -> None:
    defense, server = build(DEFENSES, name, {}), {}
    each = noises(defense, server, range(6))
    kept: dict[str, Tensor] = {}
    noises(defense, kept, range(4))
    again = noises(defense, {key: value.clone() for key, value in kept.items()}, range(4, 6))
    assert all(torch.equal(one, other) for one, other in zip(again, each[4:], strict=True))
    known = defense.server_remembers()
    assert list(known) == list(server) and not any(one.problem(server[key], P) for key, one in known.items())
