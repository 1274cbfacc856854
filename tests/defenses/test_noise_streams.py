"""Streams of noise: keyed by seed, client, round, step and purpose, scaled by the controls, and by nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, MaterialisedGradients, RoundContext

P = 20_000
LAYOUT = Layout(("a", "b"), ((P - 100,), (100,)))
CONTEXT = RoundContext(3, 1, 0.05, Cohort(clients_per_round=16, batch_size=5), LAYOUT, ((0, 0), (0, 1)))
SETTINGS: dict[str, dict[str, Any]] = {
    "fed_sdp": {"noise_at": "client"},
    "fed_acdp": {"floor": 1.0},
    "noise": {"distribution": "laplace", "applies_to": "update"},
}


def noise_of(name: str, context: RoundContext) -> Tensor:
    """What comes out (N, P) where gradients and updates are zero."""
    defense = build(DEFENSES, name, SETTINGS.get(name, {}))
    if defense.acts_at("client_message"):
        return defense.client_message(torch.zeros(len(context.keys), P), context)
    zeros = torch.zeros(len(context.keys), 5, P)
    return defense.client_step(MaterialisedGradients(zeros, LAYOUT.sizes), replace(context, local={})).step


NOISY = ["fed_cdp", "fed_acdp", "fed_sdp", "noise", "adaclip"]


@pytest.mark.parametrize(
    "change",
    [{"round": 4}, {"local_step": 2}, {"keys": ((1, 0), (1, 1))}, {"keys": ((0, 2), (0, 3))}],
    ids=["round", "step", "seed", "client"],
)
@pytest.mark.parametrize("name", NOISY)
def test_streams_differ(name: str, change: dict[str, Any]) -> None:
    first, again, other = (noise_of(name, context) for context in (CONTEXT, CONTEXT, replace(CONTEXT, **change)))
    assert torch.equal(first, again)
    correlations = torch.corrcoef(torch.cat([first, other]).double())
    assert (correlations - torch.eye(4)).abs().max() < 0.03


def test_the_places_of_noise_have_streams_of_their_own() -> None:
    defenses = [build(DEFENSES, "fed_sdp", {"noise_at": place}) for place in ("client", "receive")]
    sent = defenses[0].client_message(torch.zeros(2, P), CONTEXT)
    received = defenses[1].server_receive(torch.zeros(2, P), CONTEXT)
    assert torch.corrcoef(torch.cat([sent, received]).double())[:2, 2:].abs().max() < 0.03


def test_a_key_keeps_its_noise_when_others_join() -> None:
    more = replace(CONTEXT, keys=((0, 7), *CONTEXT.keys))
    assert torch.equal(noise_of("fed_cdp", more)[1:], noise_of("fed_cdp", CONTEXT))


@pytest.mark.parametrize("name", NOISY)
def test_noise_scale(name: str) -> None:
    silent = noise_of(name, replace(CONTEXT, noise_scale=0.0))
    assert not silent.any()
    torch.testing.assert_close(noise_of(name, replace(CONTEXT, noise_scale=100.0)), 100 * noise_of(name, CONTEXT))
