"""DSSGD: which coordinates are sent, how they are bounded, and the noise of the sparse vector technique."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, PrivacyFacts, RoundContext

P = 20_000
CONTEXT = RoundContext(0, 0, 0.05, Cohort(), Layout(("a",), ((P,),)), ((0, 0), (0, 1)))


def sent(update: Tensor, settings: dict[str, Any], context: RoundContext = CONTEXT) -> Tensor:
    return build(DEFENSES, "dssgd", settings).client_message(update, context)


def update_of(size: float = 1.0) -> Tensor:
    return size * torch.randn(2, P, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("share", [1, 0.1, 0.01, 0.001, 0.00001])
@pytest.mark.parametrize("selection", ["random", "largest"])
def test_the_share_is_rounded_up(share: float, selection: str) -> None:
    chosen = sent(update_of(), {"share": share, "threshold": -1, "selection": selection}) != 0
    assert chosen.sum(1).tolist() == [math.ceil(share * P)] * 2


def test_values_are_clamped_and_otherwise_kept() -> None:
    update = update_of()
    values = sent(update, {"share": 0.5, "threshold": 0.5, "bound": 1.5})
    chosen = values != 0
    assert torch.equal(values[chosen], update[chosen].clamp(-1.5, 1.5))
    assert update[chosen].abs().min() > 0.5
    # About 62% of normal coordinates lie above 0.5: there are enough to choose from.
    assert chosen.sum(1).tolist() == [P // 2] * 2


def test_fewer_are_sent_where_fewer_are_above_the_threshold() -> None:
    update = update_of()
    values = sent(update, {"share": 0.5, "threshold": 1.0, "bound": 9})
    assert torch.equal(values, update.where(update.abs() > 1.0, torch.zeros_like(update)))


def test_the_largest() -> None:
    update = torch.tensor([[0.5, -3.0, 2.0, 1.0], [9.0, 8.0, 0.0, -7.0]])
    context = replace(CONTEXT, layout=Layout(("a",), ((4,),)))
    values = sent(update, {"share": 0.5, "selection": "largest", "bound": 2.5}, context)
    assert values.tolist() == [[0, -2.5, 2.0, 0], [2.5, 2.5, 0, 0]]


def test_the_choice_is_uniform_among_the_eligible_and_new_every_round() -> None:
    update = torch.cat([torch.ones(1, 10), torch.zeros(1, 10)], 1).expand(2, -1)
    rounds = [replace(CONTEXT, round=now, layout=Layout(("a",), ((20,),))) for now in range(500)]
    chosen = torch.stack([sent(update, {"share": 0.2, "threshold": 0.5, "bound": 1}, now) != 0 for now in rounds])
    assert (chosen.sum(-1) == 4).all()
    counts = chosen.sum(0)[:, :10]
    # Sampling without replacement varies less than the multinomial that this test assumes.
    assert all(stats.chisquare(row.numpy()).pvalue > 1e-3 for row in counts)
    assert not torch.equal(chosen[:, 0], chosen[:, 1])


def test_selection_is_no_noise() -> None:
    silent = replace(CONTEXT, noise_scale=0.0)
    for settings in ({}, {"epsilon": 1.0}):
        assert torch.equal(sent(update_of(), settings, silent), sent(update_of(), {}))


def laplace_scale_is_accepted(noise: Tensor, scale: float, alpha: float = 1e-3) -> bool:
    """Magnitudes of Laplace noise are exponential."""
    tail = stats.chi2.cdf(2 * noise.abs().sum().item() / scale, 2 * len(noise))
    return 2 * min(tail, 1 - tail) > alpha


def test_the_noise_on_values_has_the_scale_of_the_proof() -> None:
    """A huge threshold budget of noise apart, values sent get Laplace noise of scale c * 2 gamma / (epsilon / 9)."""
    share, bound, epsilon = 0.5, 1.0, 5e6
    count = P // 2
    update = torch.full((2, P), 0.5, dtype=torch.float64)
    values = sent(update, {"share": share, "threshold": -5, "bound": bound, "epsilon": epsilon})
    scale = count * 2 * bound / (epsilon / 9)
    noise = (values - 0.5)[values != 0]
    assert len(noise) == 2 * count
    assert laplace_scale_is_accepted(noise, scale)
    assert not laplace_scale_is_accepted(noise, 1.05 * scale)


def test_the_noise_on_magnitudes_has_the_scale_of_the_proof() -> None:
    """Zero coordinates are sent as often as their noise passes the threshold, whose own noise is small beside it."""
    epsilon, threshold = 2 * P * 4.5, 0.5
    scale = 2 * 1 * 2 * 1.0 / (epsilon / P * 4 / 9)  # c = P: noise of scale 2 c Delta / (4/9 epsilon)
    chosen = sent(torch.zeros(2, P).double(), {"share": 1, "threshold": threshold, "bound": 1, "epsilon": epsilon}) != 0
    expected = 0.5 * math.exp(-threshold / scale)
    assert stats.binomtest(int(chosen.sum()), 2 * P, expected).pvalue > 1e-3
    wrong = 0.5 * math.exp(-threshold / (1.15 * scale))  # of so many, 5% cannot be told at 1e-3
    assert stats.binomtest(int(chosen.sum()), 2 * P, wrong).pvalue < 1e-3


def test_what_is_sent_stays_bounded_under_noise() -> None:
    assert sent(update_of(), {"epsilon": 0.1}).abs().max() <= 1e-2


def test_epsilon_adds_up_over_rounds() -> None:
    statements = build(DEFENSES, "dssgd", {"epsilon": 2}).statements(PrivacyFacts(Cohort(rounds=30), tensors=4))
    assert [(one.view, one.epsilon, one.delta) for one in statements] == [
        ("third party", 60, 0), ("server", 60, 0), ("client", 60, 0),
    ]  # fmt: skip
    assert all("adds up over all coordinates" in one.notes for one in statements)


@pytest.mark.parametrize(
    ("settings", "parameters", "claimed"),
    [({"epsilon": 2}, 1000, 0.02), ({"epsilon": 2, "share": 1}, 1000, 0.002), ({"epsilon": 2}, None, None),
     ({}, 1000, None)],
)  # fmt: skip
def test_claimed_is_the_share_of_one_coordinate(
    settings: dict[str, Any], parameters: int | None, claimed: float | None
) -> None:
    """Epsilon over c = ceil(share * P), whatever the rounds: what the paper prints beside a sum that is valid."""
    facts = PrivacyFacts(Cohort(rounds=30), tensors=4, parameters=parameters)
    statements = build(DEFENSES, "dssgd", settings).statements(facts)
    assert [one.claimed_epsilon for one in statements] == [claimed] * len(statements)
    assert [one.guarantee == "none" for one in statements] == [not settings] * len(statements)


def test_adversaries_are_told_where_zeros_mean_nothing() -> None:
    assert build(DEFENSES, "dssgd", {}).sparse_at("T1.out")
    assert not build(DEFENSES, "dssgd", {}).sparse_at("T2.step")
    assert not build(DEFENSES, "dssgd", {"share": 1, "threshold": -1}).sparse_at("T1.out")
