"""Every registered defense, one line each, through a client's round and the server."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.building import build
from harness.defenses import DEFENSES, Cohort, PrivacyFacts, RoundContext
from harness.federated import run_client_round
from harness.models import RowModel
from harness.privacy import GUARANTEES
from harness.privacy.views import VIEWS

N, B, ETA = 4, 3, 0.05
FACTS = PrivacyFacts(Cohort(clients_per_round=N, rounds=3, steps_per_round=10), tensors=4, rate=0.1)
PLAIN_TAPS = {"T2.raw", "T2.step", "T1.raw", "T1.out", "T0.in", "T0.post"}

# Tags against a third party, the server and another client.
CENTRAL = ["client-DP central", "none", "client-DP central"]
LDP = ["client-DP central", "client-LDP", "client-DP central"]
SAMPLE = ["sample-DP", "sample-DP local view", "sample-DP"]

# name: taps beyond the plain ones, guarantee tags in order, and what units() must say about place and convention
TABLE: dict[str, tuple[set[str], list[str], str]] = {
    "none": (set(), ["none"], "no clipping, no noise"),
    "fed_sdp": (
        set(),
        CENTRAL,
        "noise std sigma*C on the sum at the server with sigma=6",
    ),
    "fed_cdp": (
        {"T2.clip"},
        SAMPLE,
        "sigma*S on the sum of clipped per-example gradients",
    ),
    "fed_acdp": ({"T2.clip"}, ["none"], "S=example_max of the batch"),
    "adaclip": (set(), SAMPLE, "(g-a)/b clipped per whole to 1"),
    "dp_local": ({"T2.clip"}, SAMPLE, "noise std 2*sigma*C on the sum"),
    "dssgd": (set(), ["none"], "at most the 0.1 share of coordinates"),
    "global_dp": (set(), CENTRAL, "noise std sigma*S on the sum at the server"),
    "noise": (set(), ["none"], "each update sent (a gradient times the learning rate)"),
    "pruning": (set(), ["none"], "the 0.7 share of the whole vector"),
    "quantile": (set(), CENTRAL, "noise std z_D*C on the sum at the server"),
    "secagg_ddp": ({"T2.clip"}, [*SAMPLE, "sample-DP local view"], "the server gets masked vectors and their sum"),
}
SECURE_SUM = ("secagg_ddp",)
# Settings beyond the defaults under which the server remembers, or sigma decays.
OTHERWISE = (
    ("quantile", {"unit": "example"}), ("quantile", {"rate": 0}), ("global_dp", {"bound": "median"}),
    ("fed_acdp", {"policy": "linear"}), ("fed_acdp", {"policy": "cyclic"}), ("pruning+quantile", {}),
    ("fed_acdp+pruning", {"fed_acdp.policy": "staircase"}),
)  # fmt: skip
DETERMINISTIC = ("none", "pruning")


@pytest.fixture(scope="module")
def model() -> RowModel:
    return RowModel("lenet", (1, 8, 8), 4)


def play(model: RowModel, name: str, rows: slice = slice(0, N), seed: int = 0, together: int = 1) -> dict[str, Tensor]:
    """All taps of some rows' round, and the aggregate of these rows as T0.agg where the server gets their messages."""
    random = torch.Generator().manual_seed(1)
    images = torch.rand(N, B, 1, 8, 8, generator=random)
    labels = torch.randint(0, 4, (N, B), generator=random)
    weights = model.initial_weights([(0, client) for client in range(N)])
    keys = tuple((seed, client) for client in range(N))[rows]
    context = RoundContext(2, 0, ETA, Cohort(clients_per_round=N, batch_size=B), model.layout, keys)
    defense = build(DEFENSES, name, {})
    taps = run_client_round(model, weights[rows], images[rows], labels[rows], defense, context, 1, together).taps
    if "T0.post" not in taps:
        return taps
    return taps | {"T0.agg": defense.aggregate(taps["T0.post"].sum(0), context)}


def test_the_table_has_every_registered_defense() -> None:
    assert set(TABLE) == set(DEFENSES)


@pytest.mark.parametrize("name", TABLE)
def test_taps_have_their_shapes_and_finite_values(model: RowModel, name: str) -> None:
    taps = play(model, name, together=N)
    extra, _, _ = TABLE[name]
    assert set(taps) == PLAIN_TAPS | extra | {"T0.agg"}
    total = model.layout.total
    for tap, values in taps.items():
        per_example = tap in ("T2.raw", "T2.clip")
        expected = (total,) if tap == "T0.agg" else (N, B, total) if per_example else (N, total)
        expected = (1, total) if tap in ("T0.in", "T0.post") and name in SECURE_SUM else expected
        assert tuple(values.shape) == expected, tap
        assert values.isfinite().all(), tap
        assert values.dtype == (torch.float32 if tap.startswith("T2") else torch.float64), tap


@pytest.mark.parametrize("name", TABLE)
def test_a_round_is_a_function_of_its_key(model: RowModel, name: str) -> None:
    first, again, other = play(model, name), play(model, name), play(model, name, seed=1)
    assert all(torch.equal(first[tap], again[tap]) for tap in first)
    assert any(not torch.equal(first[tap], other[tap]) for tap in first) == (name not in DETERMINISTIC)


@pytest.mark.parametrize("name", TABLE)
def test_a_row_does_not_depend_on_the_rows_beside_it(model: RowModel, name: str) -> None:
    together = play(model, name)
    halves = [play(model, name, rows) for rows in (slice(0, 2), slice(2, 4))]
    alone = play(model, name, slice(3, 4))
    assert ("T0.in" in together) == (name not in SECURE_SUM)
    for tap in set(together) - {"T0.agg"}:
        assert torch.equal(together[tap], torch.cat([half[tap] for half in halves])), tap
        # A single row takes other kernels.
        torch.testing.assert_close(alone[tap], together[tap][3:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TABLE)
def test_the_aggregate_divides_by_the_cohort_of_the_settings(model: RowModel, name: str) -> None:
    defense = build(DEFENSES, name, {})
    messages = torch.randn(N, model.layout.total, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    keys = tuple((0, client) for client in range(N))
    context = RoundContext(0, 0, ETA, Cohort(clients_per_round=8), model.layout, keys, noise_scale=0.0)
    total = messages.sum(0)
    torch.testing.assert_close(defense.aggregate(total, context), total / 8)
    larger = replace(context, cohort=Cohort(clients_per_round=16), noise_scale=1.0, server={})
    smaller = replace(larger, cohort=Cohort(clients_per_round=8), server={})
    torch.testing.assert_close(defense.aggregate(total, larger) * 2, defense.aggregate(total, smaller))


@pytest.mark.parametrize("name", TABLE)
def test_statements(name: str) -> None:
    defense = build(DEFENSES, name, {})
    _, tags, phrase = TABLE[name]
    assert phrase in defense.units()
    assert "\n" not in defense.units()
    statements = defense.statements(FACTS)
    assert [statement.guarantee for statement in statements] == tags
    for statement in statements:
        assert statement.guarantee in GUARANTEES
        assert statement.view in VIEWS
        assert statement.notes
        assert (statement.epsilon is None) == (statement.adjacency is None) == (statement.guarantee == "none")


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


VARIANTS = [*((name, {}) for name in TABLE), *OTHERWISE]


def two_rounds(model: RowModel, name: str, settings: dict[str, Any], planned: int) -> tuple[list[Tensor], list[str]]:
    """What the server applies in rounds 3 and 4 of so many, and what it remembers afterwards."""
    random = torch.Generator().manual_seed(1)
    images, labels = torch.rand(N, B, 1, 8, 8, generator=random), torch.zeros(N, B, dtype=torch.long)
    weights = model.initial_weights([(0, client) for client in range(N)])
    defense, server, made = build(DEFENSES, name, settings), {}, []
    for now in (3, 4):
        context = RoundContext(
            now, 0, ETA, Cohort(clients_per_round=N, rounds=planned, batch_size=B), model.layout,
            tuple((0, client) for client in range(N)), server=server,
        )  # fmt: skip
        message = run_client_round(model, weights, images, labels, defense, context, 1, N).taps["T0.post"]
        context.sent.update({key: values.sum(0) for key, values in context.sent.items()})
        made.append(defense.aggregate(message.sum(0), context))
    return made, list(server)


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_what_depends_on_planned_rounds_or_memory_says_so(model: RowModel, name: str, settings: dict[str, Any]) -> None:
    """Training goes on beyond its planned rounds, and keeps the server's memory, by what these two say."""
    defense = build(DEFENSES, name, settings)
    (few, remembered), (many, _) = two_rounds(model, name, settings, 10), two_rounds(model, name, settings, 1000)
    alike = all(torch.equal(one, other) for one, other in zip(few, many, strict=True))
    assert alike == (defense.needs_planned_rounds() is None)
    assert bool(remembered) == defense.adapts()
