"""Fed-αCDP: the readings of S against hand computation, and why its noise protects nothing provably."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, MaterialisedGradients, PrivacyFacts, RoundContext
from harness.privacy.schedules import NoiseSchedule

LAYOUT = Layout(("a", "b"), ((2,), (1,)))
# Two examples; norms per tensor are (5, 0.5) and (1, 2).
GRADIENTS = torch.tensor([[[3.0, 4.0, 0.5], [0.0, 1.0, 2.0]]], dtype=torch.float64)


def step(gradients: Tensor, settings: dict[str, Any], noise_scale: float = 1.0, round_index: int = 0) -> Tensor:
    cohort = Cohort(batch_size=gradients.shape[1])
    context = RoundContext(round_index, 0, 0.05, cohort, LAYOUT, ((0, 0),), noise_scale)
    defense = build(DEFENSES, "fed_acdp", settings)
    return defense.client_step(MaterialisedGradients(gradients, LAYOUT.sizes), context).step


def sensitivity(gradients: Tensor, settings: dict[str, Any]) -> float:
    """S, from the noise that ``mean`` adds, compared with that of S = 1 (a floor of 1 on zero gradients)."""
    with_mean = {"sigma": 2, "convention": "mean"}
    unit = step(torch.zeros_like(gradients), {**with_mean, "floor": 1.0})
    noise = step(gradients, {**with_mean, **settings}) - step(gradients, {**with_mean, **settings}, noise_scale=0)
    ratios = noise / unit
    torch.testing.assert_close(ratios, ratios[:, :1].expand_as(ratios))
    return float(ratios[0, 0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"s_mode": "example_max", "clip": 10}, 5.0),
        ({"s_mode": "example_max", "clip": 4}, 4.0),
        ({"s_mode": "example_max", "clip": math.inf}, 5.0),
        # The whole first example is scaled by 4 / sqrt(25.25); its first tensor is the largest left.
        ({"s_mode": "example_max", "clip": 4, "clipping": "whole"}, 20 / math.sqrt(25.25)),
        # Clipped tensor a: (2.4, 3.2) and (0, 1), mean (1.2, 2.1).
        ({"s_mode": "batch_max", "clip": 4}, math.hypot(1.2, 2.1)),
        ({"s_mode": "batch_max", "clip": 10}, math.hypot(1.5, 2.5)),
        ({"s_mode": "example_mean", "clip": 4}, (5 + 2) / 2),
    ],
)
def test_readings_of_the_sensitivity(settings: dict[str, Any], expected: float) -> None:
    assert sensitivity(GRADIENTS, settings) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("scale", "expected"), [(1e-3, 0.1), (1e3, 32.0)])
def test_the_released_code_holds_its_norms_in_a_range(scale: float, expected: float) -> None:
    assert sensitivity(scale * GRADIENTS, {"s_mode": "example_mean"}) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mode", ["example_max", "batch_max"])
def test_the_floor_holds(mode: str) -> None:
    assert sensitivity(1e-3 * GRADIENTS, {"s_mode": mode, "floor": 0.25}) == pytest.approx(0.25, rel=1e-4)


def test_only_the_released_code_does_not_clip() -> None:
    raw = GRADIENTS.mean(1)
    assert torch.equal(step(GRADIENTS, {"s_mode": "example_mean", "clip": 1}, noise_scale=0), raw)
    clipped = step(GRADIENTS, {"clip": 1}, noise_scale=0)
    assert clipped[0].tolist() == pytest.approx([0.3, 0.9, 0.75])


@pytest.mark.parametrize("convention", ["sum", "per_example", "mean"])
@pytest.mark.parametrize("mode", ["example_max", "batch_max"])
def test_a_batch_without_gradients_gives_itself_away(mode: str, convention: str) -> None:
    """Neighbours with disjoint outputs: one is always zero, the other never; no (epsilon, delta < 1) fits that."""
    settings = {"s_mode": mode, "convention": convention, "floor": 0}
    empty, neighbour = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)
    neighbour[0, 0, :2] = torch.tensor([0.0, 4.0])
    guesses = []
    for round_index in range(100):
        outputs = [step(batch, settings, round_index=round_index) for batch in (empty, neighbour)]
        guesses += [not outputs[0].any(), bool(outputs[1].all())]
    assert all(guesses)
    facts = PrivacyFacts(Cohort(rounds=3), tensors=2)
    # Fed-CDP's fixed noise, by contrast, covers the empty batch like any other.
    assert [s.guarantee for s in build(DEFENSES, "fed_acdp", settings).statements(facts)] == ["none"]


def test_the_default_floor_makes_it_only_nearly_deterministic() -> None:
    output = step(torch.zeros(1, 2, 3), {})
    assert 0 < output.abs().max() < 1e-3


@pytest.mark.parametrize(
    ("settings", "sigma"),
    [
        ({}, 6.0),
        ({"sigma": 2}, 2.0),
        ({"policy": "linear"}, NoiseSchedule("linear", "eps", 15, 4.85, 100, 100).sigma(50)),
        ({"policy": "linear", "schedule": "sigma"}, NoiseSchedule("linear", "sigma", 15, 4.85, 100, 100).sigma(50)),
        ({"policy": "linear", "schedule": "sigma", "sigma": 9, "sigma_end": 3}, 9 - 6 * 50 / 99),
        ({"policy": "cyclic", "cycles": 1}, 4.85 + 10.15 / 2),
    ],
)
def test_the_policy_sets_the_noise_of_the_round(settings: dict[str, Any], sigma: float) -> None:
    fixed = {"convention": "mean", "floor": 1.0}
    unit = step(torch.zeros(1, 2, 3), {**fixed, "sigma": 1}, round_index=50)
    noise = step(torch.zeros(1, 2, 3), {**fixed, **settings}, round_index=50)
    torch.testing.assert_close(noise, sigma * unit)
