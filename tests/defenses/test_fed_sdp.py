"""Fed-SDP: which taps see clipping and noise, by placement."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.models import RowModel
from harness.testing import play_taps

PLACEMENTS = [("aggregate", set()), ("receive", {"T0.post"}), ("client", {"T1.out", "T0.in", "T0.post"})]
CLIPPED = {"aggregate": {"T0.post"}, "receive": {"T0.post"}, "client": {"T1.out", "T0.in", "T0.post"}}


@pytest.fixture(scope="module")
def model() -> RowModel:
    return RowModel("lenet", (1, 8, 8), 4)


def play(model: RowModel, settings: dict[str, Any], noise_scale: float = 1.0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(2)
    images, labels = torch.rand(2, 2, 1, 8, 8, generator=random), torch.tensor([[0, 1], [2, 3]])
    keys = [(0, 0), (0, 1)]
    cohort = Cohort(clients_per_round=2, batch_size=2)
    context = RoundContext(0, 0, 0.05, cohort, model.layout, tuple(keys), noise_scale)
    defense = build(DEFENSES, "fed_sdp", {"clip": 0.001, **settings})
    taps = play_taps(model, model.initial_weights(keys), images, labels, defense, context, 1)
    return taps | {"T0.agg": defense.aggregate(taps["T0.post"].sum(0), context)}


@pytest.mark.parametrize(("place", "noisy"), PLACEMENTS)
def test_which_taps_are_noisy_and_clipped(model: RowModel, place: str, noisy: set[str]) -> None:
    loud, silent = play(model, {"noise_at": place}), play(model, {"noise_at": place}, noise_scale=0)
    assert {tap for tap in loud if not torch.equal(loud[tap], silent[tap])} == noisy | {"T0.agg"}
    after_step = ("T1.raw", "T1.out", "T0.in", "T0.post")
    assert {tap for tap in after_step if not torch.equal(silent[tap], silent["T1.raw"])} == CLIPPED[place]
    defense = build(DEFENSES, "fed_sdp", {"noise_at": place})
    assert {tap for tap in loud if tap != "T0.agg" and defense.clipping_at(tap, 0.05)} == CLIPPED[place]


@pytest.mark.parametrize("place", ["aggregate", "receive", "client"])
def test_the_client_itself_is_never_protected(model: RowModel, place: str) -> None:
    undefended = play(model, {"sigma": 0, "clip": 1e9})
    defended = play(model, {"noise_at": place})
    assert all(torch.equal(defended[tap], undefended[tap]) for tap in ("T2.raw", "T2.step", "T1.raw"))


def test_the_three_placements_of_full_noise_differ_only_by_where() -> None:
    defense = build(DEFENSES, "fed_sdp", {"clip": 3, "noise_at": "client"})
    clipping = defense.clipping_at("T1.out", learning_rate=0.05)
    assert clipping is not None
    assert (clipping.bound, clipping.grouping, clipping.unit) == (pytest.approx(60), "layer", "update")
