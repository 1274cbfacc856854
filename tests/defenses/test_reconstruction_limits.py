"""What each defense's theorem leaves an attacker at each tap, by formulas of their own, and where there is none."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.federation.knowledge import limit_at
from harness.federation.taps import Tap
from harness.privacy import GaussianLimit, NoLimit, PureLimit, RenyiLimit

B, K, M = 4, 10, 3
CONTEXT = RoundContext(
    0, 0, 0.05, Cohort(clients_per_round=K, batch_size=B), Layout(("a", "b", "c"), ((3,), (4, 2), (5,))), ((0, 0),)
)  # fmt: skip
STEP, MESSAGE = ("T2.step", "T1.raw", "T1.out", "T0.in", "T0.post"), ("T1.out", "T0.in", "T0.post")
BEFORE, AT_STEP = ("T2.raw", "T2.clip"), ("T2.step", "T1.raw")

# Defense, settings, taps, and mu where noise is Gaussian.
BOUNDED: dict[str, tuple[str, dict[str, Any], tuple[str, ...], float]] = {
    "fed_cdp, sum": ("fed_cdp", {"sigma": 6}, STEP, math.sqrt(M) / 6),
    "fed_cdp, another clip": ("fed_cdp", {"sigma": 6, "clip": 0.5}, STEP, math.sqrt(M) / 6),
    "fed_cdp, per example": (
        "fed_cdp", {"sigma": 6, "convention": "per_example"}, STEP, math.sqrt(M) / (6 * math.sqrt(B)),
    ),
    "fed_cdp, mean": ("fed_cdp", {"sigma": 6, "convention": "mean"}, STEP, math.sqrt(M) / (6 * B)),
    "fed_cdp, whole": ("fed_cdp", {"sigma": 6, "clipping": "whole"}, STEP, 1 / 6),
    "fed_cdp, examples": (
        "fed_cdp", {"sigma": 6, "convention": "per_example"}, ("T2.examples",), math.sqrt(M) / 6,
    ),
    "dp_local": ("dp_local", {"sigma": 60, "clip": 3}, STEP, 1 / 120),
    "quantile of examples": ("quantile", {"unit": "example", "sigma": 2}, STEP, 1 / 2),
    "adaclip": ("adaclip", {"sigma": 2}, STEP, 1 / 2),
    "fed_sdp at the client": ("fed_sdp", {"noise_at": "client"}, MESSAGE, math.sqrt(M) / 6),
    "fed_sdp, a share": (
        "fed_sdp", {"noise_at": "client", "noise_split": "share"}, MESSAGE, math.sqrt(M * K) / 6,
    ),
    "fed_sdp on receipt": ("fed_sdp", {"noise_at": "receive", "clipping": "whole"}, ("T0.post",), 1 / 6),
    "secagg_ddp, one message, also of their sum": (
        "secagg_ddp", {"mechanism": "gaussian", "mode": "paper", "sigma": 1.4, "colluders": 2, "dropouts": 1}, STEP,
        math.sqrt(K - 3) / 1.4,
    ),
    "secagg_ddp, the least noisy of clients that differ": (
        "secagg_ddp",
        {"mechanism": "gaussian", "mode": "paper", "sigma": 1.4, "clips": (1.0, 3.0), "noises": (1.0, 2.0)},
        STEP, 1.5 * math.sqrt(K) / 1.4,
    ),
    "a fixed scale by another name": ("fed_acdp", {"sigma": 6, "floor": 4}, STEP, math.sqrt(M) / 6),
    "stack: pruned after noise": ("fed_cdp+pruning", {"fed_cdp.sigma": 6}, STEP, math.sqrt(M) / 6),
    "stack: pruned before noise": (
        "pruning+fed_sdp", {"fed_sdp.noise_at": "client"}, MESSAGE, math.sqrt(M) / 6,
    ),
    "stack: the better of two": (
        "fed_cdp+fed_sdp", {"fed_cdp.sigma": 6, "fed_sdp.sigma": 60, "fed_sdp.noise_at": "client"}, MESSAGE,
        math.sqrt(M) / 60,
    ),
    "stack: the one that has acted": (
        "fed_cdp+fed_sdp", {"fed_cdp.sigma": 6, "fed_sdp.sigma": 60, "fed_sdp.noise_at": "client"}, AT_STEP,
        math.sqrt(M) / 6,
    ),
}  # fmt: skip

ALL = (*BEFORE, *STEP)
UNBOUNDED: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str]] = {
    "no defense": ("none", {}, STEP, "no noise"),
    "before the noise": ("fed_cdp", {}, BEFORE, "before any noise"),
    "l2-max": ("fed_acdp", {}, STEP, "follows private data"),
    "the released code": ("fed_acdp", {"s_mode": "example_mean"}, STEP, "follows private data"),
    "pruning": ("pruning", {}, MESSAGE, "left out depends on private data"),
    "dssgd without epsilon": ("dssgd", {}, MESSAGE, "left out depends on private data"),
    "dp_local, median": ("dp_local", {"clipping": "median_per_tensor"}, STEP, "follows private data"),
    "global_dp, median": ("global_dp", {"bound": "median"}, MESSAGE, "no noise"),
    "noise on the gradient": ("noise", {"applies_to": "gradient"}, STEP, "without clipping"),
    "noise on examples": ("noise", {"applies_to": "example"}, (*STEP, "T2.examples"), "without clipping"),
    "noise on the update": ("noise", {}, MESSAGE, "without clipping"),
    "no noise on the step yet": ("noise", {}, AT_STEP, "before the defense acts"),
    "fed_cdp, sigma 0": ("fed_cdp", {"sigma": 0}, STEP, "no noise"),
    "fed_sdp, sigma 0": ("fed_sdp", {"sigma": 0, "noise_at": "client"}, MESSAGE, "no noise"),
    "adaclip, sigma 0": ("adaclip", {"sigma": 0}, STEP, "no noise"),
    "quantile, sigma 0": ("quantile", {"unit": "example", "sigma": 0}, STEP, "no noise"),
    "secagg_ddp, sigma 0": ("secagg_ddp", {"sigma": 0}, STEP, "no noise"),
    "fed_sdp at the server": ("fed_sdp", {}, ("T1.out", "T0.in"), "before the defense acts"),
    "fed_sdp on receipt, before": ("fed_sdp", {"noise_at": "receive"}, AT_STEP, "before the defense acts"),
    "global_dp": ("global_dp", {}, ("T1.out",), "before the defense acts"),
    "quantile of clients": ("quantile", {}, MESSAGE, "no noise"),
    "adapters": ("paper:LoRA", {}, STEP, "never sent"),
    "tensors left out": ("nvflare:ExcludeVars", {"exclude_vars": "bias"}, MESSAGE, "never sent"),
    "stack": ("pruning+noise", {}, MESSAGE, "pruning: which coordinates"),
}  # fmt: skip


@pytest.mark.parametrize(("defense", "args", "taps", "mu"), BOUNDED.values(), ids=BOUNDED)
def test_bounded(defense: str, args: dict[str, Any], taps: tuple[str, ...], mu: float) -> None:
    built = build(DEFENSES, defense, args)
    for tap in map(Tap, taps):
        assert limit_at(built, tap, CONTEXT) == GaussianLimit(pytest.approx(mu)), tap
        # An image is in one of several local steps; looks add up, and so does what is left of a control's noise.
        assert limit_at(built, tap, CONTEXT, steps=3) == GaussianLimit(pytest.approx(mu)), tap
        assert limit_at(built, tap, CONTEXT, looks=4) == GaussianLimit(pytest.approx(2 * mu)), tap
        loud, silent = replace(CONTEXT, noise_scale=5.0), replace(CONTEXT, noise_scale=0.0)
        assert limit_at(built, tap, loud) == GaussianLimit(pytest.approx(mu / 5)), tap
        assert isinstance(limit_at(built, tap, silent), NoLimit), tap


@pytest.mark.parametrize(("defense", "args", "taps", "why"), UNBOUNDED.values(), ids=UNBOUNDED)
def test_unbounded(defense: str, args: dict[str, Any], taps: tuple[str, ...], why: str) -> None:
    for tap in map(Tap, taps):
        found = limit_at(build(DEFENSES, defense, args), tap, CONTEXT)
        assert isinstance(found, NoLimit) and why in found.reason, (tap, found)


def test_dssgd_with_epsilon() -> None:
    built = build(DEFENSES, "dssgd", {"epsilon": 3.0})
    for tap in map(Tap, MESSAGE):
        assert limit_at(built, tap, CONTEXT, looks=2) == PureLimit(6.0)
        assert limit_at(built, tap, replace(CONTEXT, noise_scale=2.0)) == PureLimit(1.5)
    assert isinstance(limit_at(built, Tap.UPDATE, CONTEXT), NoLimit)


def _ceiling(limit: object, kappa: float) -> float:
    assert isinstance(limit, RenyiLimit)
    return limit.ceiling(kappa)


@pytest.mark.parametrize("missing", [0, 4])
def test_skellam_in_a_message_and_in_a_sum(missing: int) -> None:
    built = build(DEFENSES, "secagg_ddp", {"sigma": 1.4, "colluders": missing})
    curve = [alpha / 2 for alpha in range(2, 50)]

    def gaussian(mu: float) -> float:
        # On a fine grid Skellam noise costs what Gaussian noise does, by the formula for its Renyi curve.
        return min((0.01 * math.exp(half * mu**2)) ** (1 - 1 / (2 * half)) for half in curve)

    message = math.sqrt(K - missing) / 1.4
    for tap in map(Tap, ("T2.step", "T1.raw", "T1.out")):
        assert _ceiling(limit_at(built, tap, CONTEXT), 0.01) == pytest.approx(min(1.0, gaussian(message)), rel=1e-3)
    # Only the sum of single steps hides an example behind the other clients' noise.
    assert _ceiling(limit_at(built, Tap.ARRIVED, CONTEXT), 0.01) == pytest.approx(gaussian(1 / 1.4), rel=1e-3)
    several = limit_at(built, Tap.ARRIVED, CONTEXT, steps=2)
    assert _ceiling(several, 0.01) == pytest.approx(min(1.0, gaussian(message)), rel=1e-3)


def test_coin_tosses_hide_better_in_the_sum_and_where_they_are_more() -> None:
    fair = {"mechanism": "poisson_binomial", "theta": 0.05, "trials": 8, "rotation": False}
    built = build(DEFENSES, "secagg_ddp", fair)
    message, total = (_ceiling(limit_at(built, tap, CONTEXT), 0.01) for tap in (Tap.STEP, Tap.ARRIVED))
    assert 0.01 < total < message < 1
    # One coordinate alone, one unit, exactly: the likelihood ratio of so many heads.
    small = replace(CONTEXT, layout=Layout(("a",), ((1,),)), cohort=Cohort(clients_per_round=2, batch_size=1))
    heads = torch.arange(9.0)
    up = torch.distributions.Binomial(8, torch.tensor(0.55)).log_prob(heads).exp()
    fair_coin = torch.distributions.Binomial(8, torch.tensor(0.5)).log_prob(heads).exp()
    exact = float(up[6:].sum()), float(fair_coin[6:].sum())  # a test that wins on 6 heads or more
    assert exact[0] <= _ceiling(limit_at(built, Tap.STEP, small), exact[1]) < 1.3 * exact[0]
