"""AdaClip: plain clipping when nothing adapts, and a state that follows noisy outputs by hand computation."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, MaterialisedGradients, RoundContext, State

P, B = 6, 3
LAYOUT = Layout(("a", "b"), ((4,), (2,)))
CONTEXT = RoundContext(0, 0, 0.05, Cohort(batch_size=B), LAYOUT, ((0, 0), (0, 1)))
FIXED = {"mean_decay": 1, "variance_decay": 1}


def gradients(step: int = 0, size: float = 3.0) -> Tensor:
    return size * torch.randn(2, B, P, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def step_of(values: Tensor, settings: dict[str, Any], context: RoundContext, name: str = "adaclip") -> Tensor:
    return build(DEFENSES, name, settings).client_step(MaterialisedGradients(values, LAYOUT.sizes), context).step


def test_constant_centre_and_scale_are_plain_clipping() -> None:
    """a = 0 and b = C: clipping to C as a whole with noise sigma*C on the sum, in every step of the round."""
    settings = {"clip": 2.5, "sigma": 1.5}
    local: State = {}
    for step in range(4):
        context = replace(CONTEXT, local_step=step, local=local)
        plain = step_of(gradients(step), {**settings, "clipping": "whole"}, replace(context, local={}), "fed_cdp")
        torch.testing.assert_close(step_of(gradients(step), {**settings, **FIXED}, context), plain)


def test_the_first_step_is_plain_clipping_whatever_follows() -> None:
    settings = {"clip": 2.5, "sigma": 1.5}
    plain = step_of(gradients(), {**settings, "clipping": "whole"}, CONTEXT, "fed_cdp")
    torch.testing.assert_close(step_of(gradients(), settings, replace(CONTEXT, local={})), plain)


def test_the_state_by_hand() -> None:
    clip, sigma, decay_mean, decay_variance = 2.0, 0.5, 0.9, 0.8
    settings = {"clip": clip, "sigma": sigma, "mean_decay": decay_mean, "variance_decay": decay_variance}
    local: State = {}
    centre, variance = torch.zeros(2, P).double(), torch.full((2, P), clip**2 / P).double()
    for step in range(5):
        context = replace(CONTEXT, local_step=step, local=local)
        values = gradients(step, size=1.0)
        out = step_of(values, settings, context)
        b = variance.sqrt().sqrt() * variance.sqrt().sum(1, keepdim=True).sqrt()
        w = (values - centre[:, None]) / b[:, None]
        w = w / w.norm(dim=-1, keepdim=True).clamp(min=1)
        noise = context.gaussian("client_step", centre) * sigma / B
        torch.testing.assert_close(out, b * (w.mean(1) + noise) + centre)
        centre = decay_mean * centre + (1 - decay_mean) * out
        seen = ((out - centre) ** 2 - (b * sigma / B) ** 2).clamp(1e-12, 1)
        variance = decay_variance * variance + (1 - decay_variance) * seen
        torch.testing.assert_close(local["centre"], centre)
        torch.testing.assert_close(local["variance"], variance)


def test_one_example_moves_the_sum_by_at_most_one_scaled_unit() -> None:
    """The guarantee's sensitivity, also after the state has moved away from its start."""
    local: State = {}
    for step in range(5):
        step_of(gradients(step), {"sigma": 0}, replace(CONTEXT, local=local))
    variance = local["variance"]
    b = variance.sqrt().sqrt() * variance.sqrt().sum(1, keepdim=True).sqrt()
    everybody, without = torch.ones(2, B), torch.ones(2, B)
    without[:, 0] = 0
    adaclip = build(DEFENSES, "adaclip", {"sigma": 0})
    batches = [MaterialisedGradients(gradients(9), LAYOUT.sizes, present) for present in (everybody, without)]
    outputs = [adaclip.client_step(batch, replace(CONTEXT, local=dict(local))).step for batch in batches]
    moved = ((outputs[0] - outputs[1]) * B / b).norm(dim=1)
    assert (moved <= 1 + 1e-9).all()


def test_the_mean_of_steady_gradients_is_learned() -> None:
    """Gradients that hardly vary around a large mean end up clipped around it, and pass."""
    mean = torch.linspace(-5, 5, P).double()
    settings = {"clip": 4, "sigma": 0, "mean_decay": 0.5, "variance_high": 0.5}
    local: State = {}
    for step in range(60):
        values = mean + gradients(step, size=0.01)
        out = step_of(values, settings, replace(CONTEXT, local=local))
    assert mean.norm() > 4
    torch.testing.assert_close(out, mean.expand(2, -1), rtol=0, atol=0.05)
    assert math.isclose(local["centre"][0, 0].item(), -5, abs_tol=0.05)


@pytest.mark.parametrize("tap", ["T2.step", "T1.raw", "T0.in"])
def test_an_adversary_knows_of_clipping(tap: str) -> None:
    defense = build(DEFENSES, "adaclip", {"clip": 3})
    clipping = defense.clipping_at(tap, 0.05)
    assert clipping is not None
    assert (clipping.bound, clipping.grouping, clipping.unit) == (3, "whole", "example")
    assert defense.clipping_at("T2.raw", 0.05) is None
