"""How much noise, where, and from which stream. Gradients are all zero, so what comes out is the noise."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, MaterialisedGradients, RoundContext

P, ETA, SIGMA, C = 20_000, 0.05, 6.0, 4.0
LAYOUT = Layout(("a", "b"), ((P - 100,), (100,)))
CONTEXT = RoundContext(3, 1, ETA, Cohort(clients_per_round=16, batch_size=5), LAYOUT, ((0, 0), (0, 1)))


def zero_step(name: str, settings: dict[str, Any], context: RoundContext = CONTEXT, rows: int = 5) -> Tensor:
    """The step (N, P) of a batch of ``rows`` examples without any gradient."""
    zeros = torch.zeros(len(context.keys), rows, P)
    context = replace(context, local={})  # a round begins
    return build(DEFENSES, name, settings).client_step(MaterialisedGradients(zeros, LAYOUT.sizes), context).step


def accepts(noise: Tensor, deviation: float, alpha: float = 1e-3, laplace: bool = False) -> bool:
    """Two-sided chi-square test of the scale, and a Kolmogorov-Smirnov test of the shape."""
    sample = noise.flatten().double().numpy() / deviation
    if laplace:
        sample = sample * 2**0.5
        # Magnitudes of Laplace noise of scale 1 are exponential.
        tail = stats.chi2.cdf(2 * abs(sample).sum(), 2 * len(sample))
    else:
        tail = stats.chi2.cdf((sample**2).sum(), len(sample))
    shape = stats.kstest(sample, "laplace" if laplace else "norm", method="asymp").pvalue
    return 2 * min(tail, 1 - tail) > alpha and shape > alpha


#: What the deviation of the noise on a batch's sum is divided by.
CONVENTIONS = {"sum": 5, "per_example": 5**0.5, "mean": 1}
Z_D = (SIGMA**-2 - (2 * SIGMA) ** -2) ** -0.5


@pytest.mark.parametrize(
    ("name", "settings", "deviation"),
    [
        *(("fed_cdp", {"convention": name}, SIGMA * C / by) for name, by in CONVENTIONS.items()),
        # On zero gradients it follows its floor.
        *(("fed_acdp", {"sigma": 3, "floor": 0.5, "convention": name}, 1.5 / by) for name, by in CONVENTIONS.items()),
        ("adaclip", {}, SIGMA * C / 5),
        ("dp_local", {}, 2 * SIGMA * C / 5),
        ("quantile", {"unit": "example"}, Z_D * C / 5),
        ("quantile", {"unit": "example", "sigma_b": "inf", "rate": 0}, SIGMA * C / 5),
    ],
)
def test_noise_of_local_steps(name: str, settings: dict[str, Any], deviation: float) -> None:
    noise = zero_step(name, {"sigma": SIGMA, "clip": C, **settings})
    assert noise.std().item() == pytest.approx(deviation, rel=0.02)
    assert accepts(noise, deviation)
    # The test has the power to tell a wrong scale.
    assert not accepts(noise, 1.05 * deviation)
    assert not accepts(noise, deviation / 1.05)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_expected_batch_size_decides_and_not_the_number_of_rows(convention: str) -> None:
    settings = {"sigma": SIGMA, "convention": convention}
    assert torch.equal(zero_step("fed_cdp", settings, rows=3), zero_step("fed_cdp", settings, rows=5))


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


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    ("settings", "deviation"),
    [
        ({"applies_to": "update"}, 0.25),
        ({"applies_to": "gradient"}, 0.25),
        ({"applies_to": "example"}, 0.25 / 5**0.5),
        ({"applies_to": "gradient", "param": "var"}, 0.5),
        ({"applies_to": "gradient", "param": "scale"}, 0.25),
    ],
)
def test_additive_noise(settings: dict[str, str], deviation: float, distribution: str) -> None:
    settings = {"amount": 0.25, "distribution": distribution, **settings}
    noise = zero_step("noise", settings)
    if settings["applies_to"] == "update":
        noise = build(DEFENSES, "noise", settings).client_message(torch.zeros(2, P), CONTEXT)
    laplace = distribution == "laplace"
    if laplace and settings.get("param") == "scale":
        deviation *= 2**0.5
    if settings["applies_to"] == "example":
        # The mean of five Laplace variables is no Laplace variable; its size is what matters.
        assert noise.std().item() == pytest.approx(deviation, rel=0.02)
        return
    assert accepts(noise, deviation, laplace=laplace)
    assert not accepts(noise, 1.05 * deviation, laplace=laplace)
    assert not accepts(noise, deviation, laplace=not laplace)


@pytest.mark.parametrize(
    ("name", "settings", "deviation"),
    [
        ("global_dp", {}, SIGMA * C / 16),
        ("global_dp", {"bound": "median"}, SIGMA * C / 16),
        ("quantile", {}, Z_D * C / 16),
        ("quantile", {"sigma_b": 4}, (SIGMA**-2 - 8**-2) ** -0.5 * C / 16),
    ],
)
def test_noise_of_the_server(name: str, settings: dict[str, Any], deviation: float) -> None:
    defense = build(DEFENSES, name, {"sigma": SIGMA, "clip": C, **settings})
    one, other = replace(CONTEXT, server={}), replace(CONTEXT, server={}, keys=((0, 9),))
    noise = defense.aggregate(torch.zeros(P, dtype=torch.float64), one)
    assert accepts(noise, deviation)
    assert not accepts(noise, 1.05 * deviation)
    # Whoever takes part, the server's noise is the same: it is drawn once for the cohort, not per chunk.
    assert torch.equal(defense.aggregate(torch.zeros(P, dtype=torch.float64), other), noise)


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


# Streams: keyed by seed, client, round, step and purpose, scaled by the controls, and by nothing else.

SETTINGS: dict[str, dict[str, Any]] = {
    "fed_sdp": {"noise_at": "client"},
    "fed_acdp": {"floor": 1.0},
    "noise": {"distribution": "laplace", "applies_to": "update"},
}
NOISY = ["fed_cdp", "fed_acdp", "fed_sdp", "noise", "adaclip"]


def noise_of(name: str, context: RoundContext) -> Tensor:
    """What comes out (N, P) where gradients and updates are zero."""
    settings = SETTINGS.get(name, {})
    defense = build(DEFENSES, name, settings)
    if defense.acts_at("client_message"):
        return defense.client_message(torch.zeros(len(context.keys), P), context)
    return zero_step(name, settings, context)


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
