"""The noise that defenses declare is the noise that is measured, at every tap, in their units and of their law."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.defenses import DEFENSES
from harness.federation.declared_noise import law_p_value
from harness.federation.defense import Defense
from harness.federation.knowledge import noise_at
from harness.federation.taps import Tap
from harness.observation import Noise
from harness.testing.defenses import LAYOUT, LEVEL, SURE, assert_declares_noise, excess, public_context, shown


@dataclass(frozen=True)
class Case:
    """A defense in a round of so many local steps, and where its noise is not simply known.

    ``estimated`` and ``unknown`` are the taps where it is so; at all others the deviation is known.
    """

    defense: str
    settings: dict[str, Any]
    steps: int = 1
    estimated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def build(self) -> Defense:
        return build(DEFENSES, self.defense, self.settings)


STEP, UPDATES = ("T2.step",), ("T1.raw", "T1.out", "T0.in", "T0.post", "T0.agg", "T1.delta_y", "T1.delta_c")
SENT = ("T1.out", "T0.in", "T0.post", "T0.agg")

CASES = {
    "none": Case("none", {}),
    "noise, laplace": Case("noise", {"distribution": "laplace", "amount": 0.2}),
    "noise, laplace, gradients": Case("noise", {"distribution": "laplace", "applies_to": "gradient"}),
    "noise, examples": Case("noise", {"applies_to": "example"}, 2),
    "fed_cdp": Case("fed_cdp", {}, 3),
    "fed_cdp, per example": Case("fed_cdp", {"convention": "per_example"}, 2),
    "fed_sdp": Case("fed_sdp", {}),
    "fed_sdp at the client": Case("fed_sdp", {"noise_at": "client", "clipping": "whole"}, 2),
    "fed_sdp at the client, share": Case("fed_sdp", {"noise_at": "client", "noise_split": "share"}),
    "fed_sdp on arrival": Case("fed_sdp", {"noise_at": "receive"}, 2),
    "fed_sdp on arrival, share": Case("fed_sdp", {"noise_at": "receive", "noise_split": "share"}),
    "fed_acdp": Case("fed_acdp", {}, 2, STEP + UPDATES),
    "fed_acdp, per example": Case("fed_acdp", {"convention": "per_example"}, 1, ("T2.examples", *STEP, *UPDATES)),
    "fed_acdp, batch": Case("fed_acdp", {"s_mode": "batch_max", "policy": "linear"}, 1, STEP + UPDATES),
    "fed_acdp, code": Case("fed_acdp", {"s_mode": "example_mean"}, 1, STEP + UPDATES),
    "fed_acdp, S held": Case("fed_acdp", {"floor": 4.0, "policy": "linear", "convention": "per_example"}, 3),
    "dp_local": Case("dp_local", {}, 2),
    "dp_local, median": Case("dp_local", {"clipping": "median_per_tensor"}, 2, STEP + UPDATES),
    "adaclip": Case("adaclip", {}),
    "adaclip, several steps": Case("adaclip", {}, 3, unknown=UPDATES),
    "adaclip that stays": Case("adaclip", {"mean_decay": 1, "variance_decay": 1}, 3),
    "quantile": Case("quantile", {}),
    "quantile of examples": Case("quantile", {"unit": "example"}),
    "quantile of examples, several steps": Case("quantile", {"unit": "example"}, 3, UPDATES),
    "quantile of examples that stays": Case("quantile", {"unit": "example", "rate": 0}, 3),
    "global_dp": Case("global_dp", {}, 2),
    "global_dp, median": Case("global_dp", {"bound": "median"}),
    "tff, adaptive": Case("tff:gaussian_adaptive", {"noise_multiplier": 1.0}),
    "pfl, adaptive": Case("pfl:AdaptiveClippingGaussianMechanism", {}),
    "flower, adaptive": Case("flower:ServerSideAdaptiveClipping", {"noise_multiplier": 1.0}),
    "pruning": Case("pruning", {}, 2),
    "dssgd": Case("dssgd", {}, 2),
    "dssgd with noise": Case("dssgd", {"epsilon": 1e5, "share": 1, "threshold": -1, "bound": 0.002}, unknown=SENT),
    "secagg_ddp": Case("secagg_ddp", {}, 2),
    "secagg_ddp, no rotation": Case("secagg_ddp", {"rotation": False, "sigma": 0.3, "protocol": "sum"}),
    "secagg_ddp, who leaves": Case("secagg_ddp", {"colluders": 2, "dropouts": 2, "protocol": "sum"}),
    "secagg_ddp, in fixed point": Case("secagg_ddp", {"mode": "paper", "protocol": "sum"}, 2),
    "secagg_ddp, gaussian": Case("secagg_ddp", {"mode": "paper", "mechanism": "gaussian", "protocol": "sum"}, 2),
    "secagg_ddp, tosses": Case("secagg_ddp", {"mechanism": "poisson_binomial", "theta": 0.1, "protocol": "sum"}, 2),
    "two that add": Case("fed_cdp+noise", {"fed_cdp.sigma": 1.0, "noise.amount": 0.05}, 2),
    "two that add, laws": Case("noise+fed_cdp", {"noise.distribution": "laplace", "fed_cdp.sigma": 0.1}),
    "clipped on arrival": Case(
        "fed_cdp+fed_sdp", {"fed_cdp.sigma": 0.1, "fed_sdp.noise_at": "receive", "fed_sdp.sigma": 0.01,
        "fed_sdp.clip": 0.1}, unknown=("T0.post", "T0.agg"),
    ),
    "pruned": Case("fed_cdp+pruning", {"fed_cdp.sigma": 0.1}, unknown=SENT),
    "pruned before": Case("pruning+noise", {"noise.amount": 0.3}),
}  # fmt: skip


# Every defense is measured with its defaults at the end too; of the rest others go the same ways.
REPEATED = (
    "fed_cdp", "fed_cdp, per example", "fed_acdp", "fed_acdp, code", "dp_local", "adaclip",
    "quantile of examples", "secagg_ddp", "two that add",
)  # fmt: skip


@pytest.fixture(params=[
    pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ()) for name in CASES
])  # fmt: skip
def case(request: pytest.FixtureRequest) -> Case:
    """Each of the table's."""
    return CASES[request.param]


def test_declared_is_measured(case: Case) -> None:
    defense = case.build()
    noisy, quiet = (shown(defense, case.steps, scale) for scale in (1.0, 0.0))
    for tap, values in noisy.items():
        declared, added = noise_at(defense, tap, public_context(case.steps), case.steps), values - quiet[tap]
        if tap is Tap.PUBLISHED and defense.sparse_at(tap):
            assert declared == Noise("unknown", None, unread=True, bare=True)  # each client leaves out others
            continue
        assert (declared is not None) == bool(added.any()), f"{tap} shows noise, or declares it, without the other"
        if declared is None:
            continue
        assert declared.estimated == (tap in case.estimated), tap
        assert (declared.deviation is None and not declared.estimated) == (tap in case.unknown), tap
        if tap is Tap.PUBLISHED and tap in (*case.unknown, *case.estimated):
            continue  # there are few rounds, and their clients' noises add up to something close to Gaussian
        if tap in case.unknown:
            assert_no_sum_of_gaussians(quiet[tap], added)
        elif tap in case.estimated:
            assert_level_of_each_row(declared, added)
        else:
            assert_is(declared, added, 0.15 if tap is Tap.PUBLISHED else 0.1)
        if tap not in case.unknown:
            there = values != 0 if defense.sparse_at(tap) else torch.ones_like(values, dtype=torch.bool)
            assert_law(declared, added, there)


def assert_is(declared: Noise, added: Tensor, off: float = 0.1) -> None:
    """The deviation is right in each row and tensor and overall, and one 10% off is not."""
    for part in (added, *added.flatten(0, -2), *added.split(LAYOUT.sizes, -1)):
        assert abs(excess(part, declared)) < SURE
    for wrong in (1 - off, 1 + off):
        assert abs(excess(added, declared.times(wrong))) > SURE


def assert_law(declared: Noise, added: Tensor, there: Tensor) -> None:
    """It is the stated law, and not the other: Laplace has a peak that the others have not."""
    if declared.law == "unknown":
        return
    other = replace(declared, law="gaussian" if declared.law == "laplace" else "laplace")
    right, wrong = (law_p_value(added, one, there, LAYOUT) for one in (declared, other))
    assert right is not None and wrong is not None and wrong < LEVEL < right


def assert_level_of_each_row(declared: Noise, added: Tensor) -> None:
    """Rows have levels of their own, so that no number could be stated, and are Gaussian beside them."""
    groups = LAYOUT.groups(declared.grouping)
    levels = torch.stack([part.square().mean(-1) for part in added.flatten(0, -2).split(groups, -1)], -1)
    assert levels[:, 0].std() / levels[:, 0].mean() > SURE * (2 / groups[0]) ** 0.5
    own = levels.repeat_interleave(torch.tensor(groups), -1).sqrt()
    assert declared.law == "gaussian"
    assert (added.flatten(0, -2) / own).pow(4).mean() == pytest.approx(3.0, rel=0.05)


def assert_no_sum_of_gaussians(quiet: Tensor, added: Tensor) -> None:
    """What noise changed goes by what was there, or by other noise: beside its row's level it has heavier tails."""
    pair = torch.stack([quiet.flatten(), added.flatten()])
    mixed = torch.corrcoef(pair)[0, 1]
    tails = (added / added.square().mean(-1, keepdim=True).sqrt()).pow(4).mean() - 3
    assert max(abs(mixed), tails / 24**0.5) * pair.shape[1] ** 0.5 > SURE


@pytest.mark.parametrize("name", [name for name in DEFENSES if not build(DEFENSES, name, {}).needs_network])
def test_every_registered_defense_declares_what_its_taps_show(name: str) -> None:
    assert_declares_noise(build(DEFENSES, name, {}))


def test_clients_that_differ() -> None:
    """Of one nobody says which it is; of all together the sum's noise is known, rests and step lengths included."""
    settings = {"noises": "0.5,2", "learning_rates": "1,0.5,2", "local_steps": "3,1"}
    defense = build(DEFENSES, "secagg_ddp", {"mode": "paper", "mechanism": "gaussian", "protocol": "sum", **settings})
    noisy, quiet = (shown(defense, 3, scale) for scale in (1.0, 0.0))
    assert noise_at(defense, Tap.SENT, public_context(3), 3) == Noise("gaussian", None)
    declared = noise_at(defense, Tap.ARRIVED, public_context(3), 3)
    assert declared is not None
    assert_is(declared, noisy[Tap.ARRIVED] - quiet[Tap.ARRIVED])
    clipped = build(DEFENSES, "secagg_ddp", {"mode": "paper", "mechanism": "gaussian", "clips": "0.5,2"})
    alike = build(DEFENSES, "secagg_ddp", {"mode": "paper", "mechanism": "gaussian"})
    assert noise_at(clipped, Tap.SENT, public_context(3), 3) == noise_at(alike, Tap.SENT, public_context(3), 3)


def test_a_coarse_grid_leaves_the_level_open() -> None:
    """Rounding on the client's grid follows its data; rounding to fixed point is another noise beside the first."""
    coarse = build(DEFENSES, "secagg_ddp", {"bits": 8, "sigma": 0.1, "protocol": "sum"})
    assert noise_at(coarse, Tap.STEP, public_context(1)) == Noise("skellam", None)
    settings = {"mode": "paper", "mechanism": "gaussian", "protocol": "sum"}
    fixed, fine = (build(DEFENSES, "secagg_ddp", {"bits": bits, **settings}) for bits in (7, 32))
    assert noise_at(fixed, Tap.ARRIVED, public_context(1)) == Noise("unknown", None)
    declared = noise_at(fine, Tap.ARRIVED, public_context(1))
    assert declared is not None
    added = shown(fixed, 1, 1.0)[Tap.ARRIVED] - shown(fine, 1, 0.0)[Tap.ARRIVED]
    assert abs(excess(added, declared)) > SURE


def test_tosses_are_surer_the_more_they_say() -> None:
    """With the bias as strong as it may be, the level follows the data by more than a hundredth."""
    defense = build(DEFENSES, "secagg_ddp", {"mechanism": "poisson_binomial", "theta": 0.25})
    assert noise_at(defense, Tap.STEP, public_context(1)) == Noise("poisson_binomial", None)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_scaled_noise(scale: float) -> None:
    """Controls multiply all noise, and so what is declared of it."""
    for name, settings in {"fed_cdp": {}, "secagg_ddp": {"protocol": "sum"}, "noise": {}}.items():
        defense = build(DEFENSES, name, settings)
        declared = noise_at(defense, Tap.SENT, replace(public_context(1), noise_scale=scale))
        assert declared is not None
        assert_is(declared, shown(defense, 1, scale)[Tap.SENT] - shown(defense, 1, 0.0)[Tap.SENT])
