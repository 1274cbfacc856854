"""Noise over rounds: what adds up in the sum of the rounds so far is that of the strategy, and memory goes on."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.claims.central import buffered_column, calibrated_noise, root_column
from harness.defenses import DEFENSES, Cohort, Defense, RoundContext
from harness.defenses.correlated import best_bands

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


def toeplitz(column: list[float]) -> Tensor:
    """The matrix (rounds, rounds) of a first column."""
    padded = torch.tensor([*column, *([0.0] * ROUNDS)], dtype=torch.float64)
    return torch.stack([torch.cat([padded[: t + 1].flip(0), padded.new_zeros(ROUNDS - 1 - t)]) for t in range(ROUNDS)])


def banded(rows: Tensor) -> Tensor:
    """The matrix whose entries (rounds, bands) of each row begin at its diagonal."""
    return torch.stack([torch.stack([
        rows[t, t - s] if 0 <= t - s < rows.shape[1] else rows.new_zeros(()) for s in range(ROUNDS)
    ]) for t in range(ROUNDS)])  # fmt: skip


LOUD = {"noise_multiplier": 2, "clip": 1.5}
STRATEGIES: dict[str, tuple[dict[str, Any], Tensor, float]] = {
    "jax_privacy:BandedToeplitz": ({"bands": 3, **LOUD}, toeplitz(root_column(3)), 3.0),
    "jax_privacy:BufferedToeplitz": (
        {"buf_decay": [0.5, 0.9], "output_scale": [0.3, 0.2], **LOUD},
        toeplitz(buffered_column((0.5, 0.9), (0.3, 0.2), ROUNDS)), 3.0,
    ),
    "pfl:BandedMatrixFactorization": (
        {"min_separation": 4, "num_iterations": ROUNDS, "corrected": True}, banded(best_bands(ROUNDS, 3)),
        calibrated_noise(0.02, ROUNDS // 4, 2.0, 1e-6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_makes_independent_noise_of_it(name: str) -> None:
    """C x = g: numbers of one deviation, and independent of each other."""
    settings, strategy, deviation = STRATEGIES[name]
    made = strategy @ torch.stack(noises(build(DEFENSES, name, settings), {}, range(ROUNDS)))
    covariance = (made @ made.T / P) / deviation**2
    assert bool(((covariance - torch.eye(ROUNDS).double()).abs() < 0.05).all())


def test_a_matrix_has_no_noise_for_more_rounds_than_it_was_made_for() -> None:
    name = "pfl:BandedMatrixFactorization"
    with pytest.raises(UsageError, match=f"num_iterations={ROUNDS} has no noise for round {ROUNDS + 1}; raise it"):
        noises(build(DEFENSES, name, STRATEGIES[name][0]), {}, range(ROUNDS + 1))


def test_the_best_bands_leave_less_than_roots() -> None:
    def left(strategy: Tensor) -> float:
        return float(strategy.inverse().cumsum(0).square().sum())

    best, roots = STRATEGIES["pfl:BandedMatrixFactorization"][1], toeplitz(root_column(3))
    torch.testing.assert_close(best.square().sum(0), torch.ones(ROUNDS).double())
    mixed = banded(best_bands(ROUNDS, 3, by_rows=True))
    torch.testing.assert_close(mixed @ mixed.T, best.T @ best)
    assert float(mixed.norm(dim=0)[0]) == pytest.approx(1.23678, rel=1e-4)  # as of pfl 0.6.0
    assert left(best) < 0.99 * left(roots / roots.norm(dim=0)) < left(torch.eye(ROUNDS).double())


def tree(leaves: int, efficient: bool) -> Tensor:
    """How the noise of each prefix (leaves, nodes) is made of the nodes of a tree, each of deviation 1.

    ``efficient``: by least squares, from all nodes below those that the prefix is made of.
    """
    nodes = [(start, size) for size in (1, 2, 4, 8) for start in range(0, leaves - size + 1, size)]
    covers = torch.tensor([[float(start <= leaf < start + size) for leaf in range(leaves)] for start, size in nodes])
    made = torch.zeros(leaves, len(nodes), dtype=torch.float64)
    for rounds in range(1, leaves + 1):
        start = 0
        for size in (8, 4, 2, 1):
            if rounds & size:
                own = [n for n, (at, wide) in enumerate(nodes) if start <= at and at + wide <= start + size]
                seen = covers[own][:, start : start + size].double()
                best = torch.linalg.pinv(seen).sum(0)
                only = torch.tensor([float(nodes[n] == (start, size)) for n in own]).double()
                made[rounds - 1, own] = best if efficient else only
                start += size
    return made


@pytest.mark.parametrize("efficient", [False, True])
def test_the_noise_of_a_tree_is_of_few_nodes(efficient: bool) -> None:
    given = {"noise_multiplier": 3, "restart_frequency": 6, "use_efficient": efficient}
    x = torch.stack(noises(build(DEFENSES, "tff:tree_aggregation", given), {}, range(8)))
    prefixes, made = x[:6].cumsum(0) / 3, tree(6, efficient)
    torch.testing.assert_close(prefixes @ prefixes.T / P, made @ made.T, rtol=0, atol=0.05)
    assert float((made @ made.T)[3, 3]) == pytest.approx(4 / 7 if efficient else 1)
    # Its first tree has ended, and the next one begins.
    assert float(x[6:8].sum(0).std()) == pytest.approx(3 * float(made[1].norm()), rel=0.03)


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


@pytest.mark.parametrize("given", ["0.9,0.5", "[0.9, 0.5]", "(0.9,0.5)", [0.9, 0.5]])
def test_buffers_are_given_as_a_list_in_any_form(given: object) -> None:
    made = build(DEFENSES, "jax_privacy:BufferedToeplitz", {"buf_decay": given, "output_scale": [0.1, 0.2]})
    assert made.buf_decay == (0.9, 0.5)  # type: ignore[attr-defined]
