"""How much noise, where, and from which stream. Gradients are all zero, so what comes out is the noise."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from harness.building import build
from harness.defenses import DEFENSES, Cohort, PerExample, RoundContext
from harness.layout import Layout

P, ETA, SIGMA, C = 20_000, 0.05, 6.0, 4.0
LAYOUT = Layout(("a", "b"), ((P - 100,), (100,)))
CONTEXT = RoundContext(3, 1, ETA, Cohort(clients_per_round=16, batch_size=5), LAYOUT, ((0, 0), (0, 1)))


def zero_step(name: str, settings: dict[str, Any], context: RoundContext = CONTEXT, rows: int = 5) -> Tensor:
    """The step (N, P) of a batch of ``rows`` examples without any gradient."""
    zeros = torch.zeros(len(context.keys), rows, P)
    return build(DEFENSES, name, settings).client_step(PerExample(lambda: zeros, LAYOUT.sizes), context).step


def accepts(noise: Tensor, deviation: float, alpha: float = 1e-3) -> bool:
    """Two-sided chi-square test of the variance, and a Kolmogorov-Smirnov test of the shape."""
    sample = noise.flatten().double().numpy() / deviation
    tail = stats.chi2.cdf((sample**2).sum(), len(sample))
    shape = stats.kstest(sample, "norm").pvalue
    return 2 * min(tail, 1 - tail) > alpha and shape > alpha


@pytest.mark.parametrize(
    ("convention", "deviation"),
    [("sum", SIGMA * C / 5), ("per_example", SIGMA * C / 5**0.5), ("mean", SIGMA * C)],
)
def test_the_three_conventions(convention: str, deviation: float) -> None:
    noise = zero_step("fed_cdp", {"sigma": SIGMA, "clip": C, "convention": convention})
    assert noise.std().item() == pytest.approx(deviation, rel=0.02)
    assert accepts(noise, deviation)
    # The test has the power to tell a wrong scale.
    assert not accepts(noise, 1.05 * deviation)
    assert not accepts(noise, deviation / 1.05)


@pytest.mark.parametrize("convention", ["sum", "mean"])
def test_the_expected_batch_size_decides_and_not_the_number_of_rows(convention: str) -> None:
    settings = {"sigma": SIGMA, "convention": convention}
    assert torch.equal(zero_step("fed_cdp", settings, rows=3), zero_step("fed_cdp", settings, rows=5))


@pytest.mark.parametrize(
    ("convention", "deviation"), [("sum", 0.5 * 3 / 5), ("per_example", 0.5 * 3 / 5**0.5), ("mean", 0.5 * 3)]
)
def test_fed_acdp_noise_follows_its_floor_on_zero_gradients(convention: str, deviation: float) -> None:
    noise = zero_step("fed_acdp", {"sigma": 3, "floor": 0.5, "convention": convention})
    assert accepts(noise, deviation)
    assert not accepts(noise, 1.05 * deviation)


@pytest.mark.parametrize(
    ("settings", "hook", "deviation"),
    [
        ({"noise_at": "client"}, "client_message", SIGMA * C),
        ({"noise_at": "client", "noise_split": "share"}, "client_message", SIGMA * C / 4),
        ({"noise_at": "receive"}, "server_receive", SIGMA * C),
        ({"noise_at": "receive", "noise_split": "share"}, "server_receive", SIGMA * C / 4),
        ({"noise_at": "aggregate"}, "aggregate", SIGMA * C / 16),
        ({"noise_at": "aggregate", "noise_split": "share"}, "aggregate", SIGMA * C / 16),
    ],
)
@pytest.mark.parametrize("rows", [2, 3])
def test_fed_sdp_noise_is_scaled_by_the_cohort_of_the_settings(
    settings: dict[str, str], hook: str, deviation: float, rows: int
) -> None:
    defense = build(DEFENSES, "fed_sdp", {"sigma": SIGMA, "clip": C, **settings})
    context = replace(CONTEXT, keys=tuple((0, client) for client in range(rows)))
    noise = getattr(defense, hook)(torch.zeros(rows, P, dtype=torch.float64), context)
    assert accepts(noise, deviation)
    assert not accepts(noise, 1.05 * deviation)


@pytest.mark.parametrize("clients_per_round", [1, 4, 100])
def test_shares_add_up_to_the_whole_noise(clients_per_round: int) -> None:
    defense = build(DEFENSES, "fed_sdp", {"sigma": 1, "clip": 1, "noise_at": "client", "noise_split": "share"})
    context = replace(CONTEXT, cohort=Cohort(clients_per_round=clients_per_round))
    share = defense.client_message(torch.zeros(2, P, dtype=torch.float64), context)
    assert accepts(share * clients_per_round**0.5, 1.0)


def test_noise_on_updates_is_larger_in_units_of_the_gradient() -> None:
    update_noise = build(DEFENSES, "fed_sdp", {"noise_at": "client"}).client_message(torch.zeros(2, P), CONTEXT)
    as_gradient = update_noise / -ETA
    one = replace(CONTEXT, cohort=Cohort(batch_size=1))
    gradient_noise = zero_step("fed_cdp", {}, one, rows=1)
    assert accepts(as_gradient, SIGMA * C / ETA)
    assert accepts(gradient_noise, SIGMA * C)
    assert (as_gradient.std() / gradient_noise.std()).item() == pytest.approx(1 / ETA, rel=0.02)


@pytest.mark.parametrize(
    "change",
    [{"round": 4}, {"local_step": 2}, {"keys": ((1, 0), (1, 1))}, {"keys": ((0, 2), (0, 3))}],
    ids=["round", "step", "seed", "client"],
)
@pytest.mark.parametrize("name", ["fed_cdp", "fed_acdp", "fed_sdp"])
def test_streams_differ(name: str, change: dict[str, Any]) -> None:
    first, again, other = (noise_of(name, context) for context in (CONTEXT, CONTEXT, replace(CONTEXT, **change)))
    assert torch.equal(first, again)
    correlations = torch.corrcoef(torch.cat([first, other]).double())
    assert (correlations - torch.eye(4)).abs().max() < 0.03


def noise_of(name: str, context: RoundContext) -> Tensor:
    if name == "fed_sdp":
        return build(DEFENSES, name, {"noise_at": "client"}).client_message(torch.zeros(2, P), context)
    return zero_step(name, {"floor": 1.0} if name == "fed_acdp" else {}, context)


def test_the_places_of_noise_have_streams_of_their_own() -> None:
    defenses = [build(DEFENSES, "fed_sdp", {"noise_at": place}) for place in ("client", "receive")]
    sent = defenses[0].client_message(torch.zeros(2, P), CONTEXT)
    received = defenses[1].server_receive(torch.zeros(2, P), CONTEXT)
    assert torch.corrcoef(torch.cat([sent, received]).double())[:2, 2:].abs().max() < 0.03


def test_a_key_keeps_its_noise_when_others_join() -> None:
    more = replace(CONTEXT, keys=((0, 7), *CONTEXT.keys))
    assert torch.equal(zero_step("fed_cdp", {}, more)[1:], zero_step("fed_cdp", {}))


@pytest.mark.parametrize("name", ["fed_cdp", "fed_acdp", "fed_sdp"])
def test_noise_scale(name: str) -> None:
    silent = noise_of(name, replace(CONTEXT, noise_scale=0.0))
    assert not silent.any()
    torch.testing.assert_close(noise_of(name, replace(CONTEXT, noise_scale=100.0)), 100 * noise_of(name, CONTEXT))
