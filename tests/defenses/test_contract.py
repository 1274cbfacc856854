"""Every registered defense, one line each, through a client's round and the server."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.federation.taps import Tap
from harness.testing.defenses import (
    CLIENTS,
    FACTS,
    LEARNING_RATE,
    assert_bounds_examples,
    assert_declares_clipping,
    assert_declares_cuts,
    assert_declares_memory_and_plans,
    assert_declares_what_is_sent,
    assert_empty_places_change_nothing,
    assert_keyed,
    assert_rows_apart,
    assert_shapes,
    assert_statements,
)

LAYOUT = Layout(("weight",), ((500,),))

# Tags against a third party, the server and another client.
CENTRAL = ["client-DP central", "none", "client-DP central"]
LDP = ["client-DP central", "client-LDP", "client-DP central"]
SAMPLE = ["sample-DP", "sample-DP local view", "sample-DP"]


@dataclass(frozen=True)
class Line:
    """What a defense does by default.

    Attributes:
        tags: guarantees of its statements, in order.
        units: what units() must say about place and convention.
        taps: those that it has beyond the plain ones.
        random: whether a round depends on its key.
    """

    tags: list[str]
    units: str
    taps: frozenset[Tap] = frozenset()
    random: bool = True


CLIPPED = frozenset({Tap.CLIP})

TABLE = {
    "none": Line(["none"], "no clipping, no noise", random=False),
    "fed_sdp": Line(CENTRAL, "noise std sigma*C on the sum at the server with sigma=6"),
    "fed_cdp": Line(SAMPLE, "sigma*S on the sum of clipped per-example gradients", CLIPPED),
    "fed_acdp": Line(["none"], "S=example_max of the batch", CLIPPED),
    "adaclip": Line(SAMPLE, "(g-a)/b clipped per whole to 1"),
    "dp_local": Line(SAMPLE, "noise std 2*sigma*C on the sum", CLIPPED),
    "dssgd": Line(["none"], "at most the 0.1 share of coordinates"),
    "global_dp": Line(CENTRAL, "noise std sigma*S on the sum at the server"),
    "noise": Line(["none"], "each update sent (a gradient times the learning rate)"),
    "pruning": Line(["none"], "the 0.7 share of the whole vector", random=False),
    "quantile": Line(CENTRAL, "noise std z_D*C on the sum at the server"),
    "flip:local_dp": Line(LDP, "noise std sigma*C on each update sent with sigma=4.84481e-05"),
    "flower:LocalDpMod": Line(LDP, "clipped per whole to C=1; noise std sigma*C on each update sent"),
    "flower:ServerSideFixedClipping": Line(CENTRAL, "noise std z*C/10 on the mean at the server with z=0.2"),
    "flower:ClientSideFixedClipping": Line(CENTRAL, "noise std z*C/10 on the mean at the server with z=0.2"),
    "flower:ServerSideAdaptiveClipping": Line(CENTRAL, "C, which moves away from its quantile, first 0.1"),
    "flower:ClientSideAdaptiveClipping": Line(CENTRAL, "on the mean at the server, by the next C"),
    "nvflare:ExcludeVars": Line(["none"], "no clipping, no noise", random=False),
    "nvflare:PercentilePrivacy": Line(["none"], "below the 10th percentile are zeroed", random=False),
    "nvflare:SVTPrivacy": Line(["none"], "a noisy choice of 0.1 of all values"),
    "opacus:PrivacyEngine": Line(SAMPLE, "sigma*C on the sum of clipped per-example gradients", CLIPPED),
    "tff:gaussian_fixed": Line(CENTRAL, "noise std sigma*C on the sum at the server with sigma=1"),
    "tff:gaussian_adaptive": Line(CENTRAL, "the 0.5 quantile of norms, first 0.1"),
    "pfl:CentrallyAppliedPrivacyMechanism": Line(CENTRAL, "noise std sigma*C on the sum at the server with sigma=1"),
    "pfl:AdaptiveClippingGaussianMechanism": Line(CENTRAL, "the 0.5 quantile of norms, first 1"),
    "pfl:BandedMatrixFactorization": Line(["none"] * 3, "noise of a matrix with 47 bands"),
    "tff:tree_aggregation": Line(CENTRAL, "noise of a tree over 1024 rounds"),
    "jax_privacy:BandedToeplitz": Line(CENTRAL, "noise of a matrix with 8 bands"),
    "jax_privacy:BufferedToeplitz": Line(CENTRAL, "noise of 1 buffers (BLT)"),
    "nvflare:ModelQuantizer": Line(["none"], "numbers are rounded to half precision", random=False),
    "paper:ATS": Line(["none"], "translateX and contrast and translateY, or translateY and contrast and contrast"),
    "paper:CENSOR": Line(["none"], "the best of 20 random vectors orthogonal to them"),
    "paper:LoRA": Line(["none"], "only adapters of rank 32", random=False),
    "paper:Outpost": Line(["none"], "with probability 1/(1 + 0.125 step)"),
    "paper:PRECODE": Line(["none"], "a bottleneck before its last layer"),
    "paper:QSGD": Line(["none"], "rounded by chance to 15 steps"),
    "paper:signSGD": Line(["none"], "sent as signs, of size 1", random=False),
    "paper:top-k": Line(["none"], "the 0.9 share of the whole vector", random=False),
    "paper:Soteria": Line(["none"], "below the 80th percentile of their scores are zeroed", random=False),
    "quantization": Line(["none"], "rounded to 255 steps", random=False),
    "secagg_ddp": Line([*SAMPLE, "sample-DP local view"], "the server gets masked vectors and their sum", CLIPPED),
}
# Settings beyond the defaults under which the server remembers, or sigma decays.
OTHERWISE = (
    ("quantile", {"unit": "example"}), ("quantile", {"rate": 0}), ("global_dp", {"bound": "median"}),
    ("fed_acdp", {"policy": "linear"}), ("fed_acdp", {"policy": "cyclic"}), ("pruning+quantile", {}),
    ("fed_acdp+pruning", {"fed_acdp.policy": "staircase"}),
)  # fmt: skip


# Made-up gradients come from no network that could be read.
PLAYED = [name for name in TABLE if not build(DEFENSES, name, {}).needs_network]


def test_the_table_has_every_registered_defense() -> None:
    assert set(TABLE) == set(DEFENSES)


@pytest.mark.parametrize("name", PLAYED)
def test_taps_have_their_shapes_and_finite_values(name: str) -> None:
    assert assert_shapes(build(DEFENSES, name, {})) == TABLE[name].taps


@pytest.mark.parametrize("name", PLAYED)
def test_a_round_is_a_function_of_its_key(name: str) -> None:
    assert assert_keyed(build(DEFENSES, name, {})) == TABLE[name].random


@pytest.mark.parametrize("name", PLAYED)
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str) -> None:
    assert_rows_apart(build(DEFENSES, name, {}))


STEPS = [
    *((name, {}) for name in PLAYED), ("dp_local", {"clipping": "median_per_tensor"}),
    *(("fed_acdp", {"s_mode": reading}) for reading in ("batch_max", "example_mean")),
    *((name, {"convention": "per_example"}) for name in ("fed_cdp", "fed_acdp")),
    ("quantile", {"unit": "example", "clip": 2}), ("noise", {"applies_to": "example"}),
    ("secagg_ddp", {"mode": "paper"}),
    ("secagg_ddp", {"mode": "paper", "mechanism": "gaussian"}), ("secagg_ddp", {"mechanism": "poisson_binomial"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), STEPS)
def test_empty_places_of_a_batch_change_nothing(name: str, settings: dict[str, Any]) -> None:
    assert_empty_places_change_nothing(build(DEFENSES, name, settings))


@pytest.mark.parametrize(("name", "settings"), STEPS)
def test_clipping_is_declared_and_cuts_each_example(name: str, settings: dict[str, Any]) -> None:
    defense = build(DEFENSES, name, settings)
    assert_declares_clipping(defense)
    assert_bounds_examples(defense)
    assert_declares_cuts(defense)
    assert_declares_what_is_sent(defense)


@pytest.mark.parametrize("name", PLAYED)
def test_the_aggregate_divides_by_the_cohort_of_the_settings(name: str) -> None:
    defense = build(DEFENSES, name, {})
    messages = torch.randn(CLIENTS, LAYOUT.total, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    keys = tuple((0, client) for client in range(CLIENTS))
    context = RoundContext(0, 0, LEARNING_RATE, Cohort(clients_per_round=8), LAYOUT, keys, noise_scale=0.0)
    total = messages.sum(0)
    torch.testing.assert_close(defense.aggregate(total, context), total / 8)
    if name.endswith("AdaptiveClipping") and name.startswith("flower"):
        return  # noise goes by the next bound, which moves by noise of its own
    if name == "pfl:BandedMatrixFactorization":
        return  # noise goes by the share of clients in a round
    larger = replace(context, cohort=Cohort(clients_per_round=16), noise_scale=1.0, server={})
    smaller = replace(larger, cohort=Cohort(clients_per_round=8), server={})
    torch.testing.assert_close(defense.aggregate(total, larger) * 2, defense.aggregate(total, smaller))


@pytest.mark.parametrize("name", TABLE)
def test_statements(name: str) -> None:
    defense = build(DEFENSES, name, {})
    assert_statements(defense)
    assert TABLE[name].units in defense.units()
    assert [statement.guarantee for statement in defense.statements(FACTS)] == TABLE[name].tags


@pytest.mark.parametrize(
    ("name", "settings", "phrase"),
    [
        ("fed_sdp", {"noise_at": "receive"}, "noise std sigma*C on each update on arrival"),
        ("fed_sdp", {"noise_at": "client"}, "noise std sigma*C on each update sent"),
        ("fed_sdp", {"noise_at": "client", "noise_split": "share"}, "sigma*C/sqrt(K) on each update sent"),
        ("fed_sdp", {"noise_split": "share"}, "noise std sigma*C on the sum at the server"),
        ("fed_sdp", {"clipping": "whole"}, "clipped per whole to C=4"),
        ("fed_cdp", {"convention": "mean"}, "noise std sigma*S on the mean"),
        ("fed_cdp", {"convention": "per_example"}, "sigma*S/sqrt(B) on their mean"),
        ("fed_acdp", {"s_mode": "example_mean"}, "not clipped"),
        ("fed_acdp", {"policy": "linear"}, "policy linear (eps space)"),
        ("fed_acdp", {"policy": "linear", "schedule": "sigma"}, "policy linear (sigma space)"),
        ("fed_acdp", {"policy": "cyclic"}, "policy cyclic (sigma space)"),
        ("pruning", {"mode": "layer", "error_feedback": "yes"}, "each parameter tensor with the smallest magnitude"),
        ("dssgd", {"selection": "largest"}, "the largest, at most"),
        ("dssgd", {"epsilon": 2}, "sparse vector noise (Laplace), epsilon=2 per client and round"),
        ("noise", {"applies_to": "gradient", "param": "var"}, "batch gradient: gaussian noise of std 0.1"),
        ("noise", {"applies_to": "example"}, "each per-example gradient"),
        ("noise", {"distribution": "laplace", "param": "scale"}, "laplace noise of std 0.01414"),
        ("quantile", {"unit": "example"}, "z_D*C on the sum of the batch in every local step"),
        ("secagg_ddp", {"protocol": "sum"}, "the sum (added without the protocol), of integers modulo 2^32"),
        (
            "secagg_ddp",
            {"mechanism": "poisson_binomial"},
            "64 coin tosses per coordinate and example (Poisson-binomial, theta=0.25)",
        ),
        ("secagg_ddp", {"mode": "paper", "colluders": 2, "dropouts": 1}, "1/sqrt(K-3); the server gets masked vectors"),
        ("global_dp", {"bound": "median"}, "S=median norm of the last round, first 4"),
    ],
)
def test_units_follow_the_settings(name: str, settings: dict[str, str], phrase: str) -> None:
    units = build(DEFENSES, name, settings).units()
    assert phrase in units
    assert units.startswith("applies to ")
    if name in ("fed_sdp", "fed_cdp", "fed_acdp"):
        assert units.startswith("applies to updates" if name == "fed_sdp" else "applies to per-example gradients")


@pytest.mark.parametrize(
    ("name", "settings", "tags"),
    [
        ("fed_sdp", {"noise_at": "receive"}, CENTRAL),
        ("fed_sdp", {"noise_at": "client"}, LDP),
        (
            "fed_sdp",
            {"noise_at": "client", "noise_split": "share"},
            LDP,
        ),
        ("fed_sdp", {"sigma": 0}, ["none"]),
        ("fed_sdp", {"sigma": 0, "noise_at": "client"}, ["none"]),
        ("fed_cdp", {"sigma": 0}, ["none"]),
        ("fed_acdp", {"s_mode": "example_mean"}, ["none"]),
        ("fed_acdp", {"floor": 4.0}, ["none"]),
        ("adaclip", {"sigma": 0}, ["none"]),
        ("dssgd", {"epsilon": 2}, LDP),
        ("global_dp", {"sigma": 0}, ["none"]),
        ("global_dp", {"bound": "median"}, ["none"]),
        ("global_dp", {"bound": "median", "sigma": 0}, ["none"]),
        ("noise", {"applies_to": "example", "distribution": "laplace"}, ["none"]),
        ("quantile", {"unit": "example"}, SAMPLE),
        ("quantile", {"sigma": 0}, ["none"]),
        ("secagg_ddp", {"sigma": 0}, ["none"]),
        ("secagg_ddp", {"mechanism": "poisson_binomial"}, ["none"]),
    ],
)
def test_guarantees_follow_the_settings(name: str, settings: dict[str, object], tags: list[str]) -> None:
    assert [statement.guarantee for statement in build(DEFENSES, name, settings).statements(FACTS)] == tags


VARIANTS = [*((name, {}) for name in PLAYED), *OTHERWISE]


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_what_depends_on_planned_rounds_or_memory_says_so(name: str, settings: dict[str, Any]) -> None:
    assert_declares_memory_and_plans(build(DEFENSES, name, settings))
