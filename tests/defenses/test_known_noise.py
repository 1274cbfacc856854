"""The noise that defenses declare is the noise that is measured, at every tap, in their units and of their law."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.extensions.building import build
from harness.federation.defense import Defense
from harness.federation.known_noise import noise_at
from harness.federation.recorders import KeepTap
from harness.federation.taps import Tap
from harness.federation.variates import RoundVariates
from harness.federation.whole_round import play_round
from harness.models.example_gradients import MaterialisedGradients
from harness.observation import Noise
from harness.vectors.layout import Layout

ROUNDS, TOGETHER, BATCH, RATE = 5, 8, 4, 0.05
CLIENTS = ROUNDS * TOGETHER
LAYOUT = Layout(("weight", "bias"), ((384,), (128,)))
SURE = 5.0  # standard errors
KURTOSIS = {"gaussian": 3.0, "skellam": 3.0, "poisson_binomial": 3.0, "laplace": 6.0}


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


STEP, UPDATES = ("T2.step",), ("T1.raw", "T1.out", "T0.in", "T0.post", "T1.delta_y", "T1.delta_c")
SENT = ("T1.out", "T0.in", "T0.post")

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
    "pruning": Case("pruning", {}, 2),
    "dssgd": Case("dssgd", {}, 2),
    "dssgd with noise": Case("dssgd", {"epsilon": 1e5, "share": 1, "threshold": -1, "bound": 0.002}, unknown=SENT),
    "secagg_ddp": Case("secagg_ddp", {}, 2),
    "secagg_ddp, no rotation": Case("secagg_ddp", {"rotation": False, "sigma": 0.3}),
    "secagg_ddp, who leaves": Case("secagg_ddp", {"colluders": 2, "dropouts": 2, "protocol": "sum"}),
    "secagg_ddp, in fixed point": Case("secagg_ddp", {"mode": "paper", "protocol": "sum"}, 2),
    "secagg_ddp, gaussian": Case("secagg_ddp", {"mode": "paper", "mechanism": "gaussian", "protocol": "sum"}, 2),
    "secagg_ddp, tosses": Case("secagg_ddp", {"mechanism": "poisson_binomial", "theta": 0.1, "protocol": "sum"}, 2),
    "two that add": Case("fed_cdp+noise", {"fed_cdp.sigma": 1.0, "noise.amount": 0.05}, 2),
    "two that add, laws": Case("noise+fed_cdp", {"noise.distribution": "laplace", "fed_cdp.sigma": 0.1}),
    "clipped on arrival": Case(
        "fed_cdp+fed_sdp", {"fed_cdp.sigma": 0.1, "fed_sdp.noise_at": "receive", "fed_sdp.sigma": 0.01,
        "fed_sdp.clip": 0.1}, unknown=("T0.post",),
    ),
    "pruned": Case("fed_cdp+pruning", {"fed_cdp.sigma": 0.1}, unknown=SENT),
    "pruned before": Case("pruning+noise", {"noise.amount": 0.3}),
}  # fmt: skip


def context_of(steps: int, scale: float = 1.0, **settings: Any) -> RoundContext:
    """Of 5 rounds of 8 clients, all of which take part."""
    cohort = Cohort(TOGETHER, TOGETHER, rounds=10, steps_per_round=steps, batch_size=BATCH)
    keys = tuple((0, number, "client", client) for number in range(ROUNDS) for client in range(TOGETHER))
    clients = tuple(range(TOGETHER)) * ROUNDS
    return RoundContext(2, 0, RATE, cohort, LAYOUT, keys, scale, clients=clients, **settings)


def public(steps: int) -> RoundContext:
    """What an adversary knows of it: not which client a row is."""
    context = context_of(steps)
    return replace(context, keys=context.keys[:1], clients=())


def shown(defense: Defense, steps: int, scale: float) -> dict[Tap, Tensor]:
    """What every tap shows, in units of the gradient, where examples' gradients do not depend on the weights.

    So noise adds up over the local steps and does nothing else. Half of the examples are clipped.
    """
    random = torch.Generator().manual_seed(3)
    directions = torch.randn(steps, CLIENTS, BATCH, LAYOUT.total, generator=random)
    lengths = torch.empty(steps, CLIENTS, BATCH, 1).uniform_(0.2, 8, generator=random)
    lengths = lengths * torch.empty(CLIENTS, 1, 1).uniform_(0.1, 1, generator=random)
    made = directions / directions.norm(dim=-1, keepdim=True) * lengths
    variates = RoundVariates(torch.randn(LAYOUT.total, generator=random), torch.zeros(CLIENTS, LAYOUT.total))
    keep = [KeepTap(tap) for tap in Tap]
    play_round(
        lambda step, _: MaterialisedGradients(made[step], LAYOUT.sizes), torch.zeros(CLIENTS, LAYOUT.total), defense,
        context_of(steps, scale), steps, keep, together=TOGETHER, variates=variates,
    )  # fmt: skip
    moved = {tap: -RATE * steps if tap.of_update and tap is not Tap.DELTA_C else 1.0 for tap in Tap}
    return {tap: one.shown.double() / moved[tap] for tap, one in zip(Tap, keep, strict=True) if one.shown is not None}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each of the table's."""
    return CASES[request.param]


def test_declared_is_measured(case: Case) -> None:
    defense = case.build()
    noisy, quiet = (shown(defense, case.steps, scale) for scale in (1.0, 0.0))
    for tap, values in noisy.items():
        declared, added = noise_at(defense, tap, public(case.steps), case.steps), values - quiet[tap]
        assert (declared is not None) == bool(added.any()), f"{tap} shows noise, or declares it, without the other"
        if declared is None:
            continue
        assert declared.estimated == (tap in case.estimated), tap
        assert (declared.deviation is None and not declared.estimated) == (tap in case.unknown), tap
        if tap in case.unknown:
            assert_no_sum_of_gaussians(quiet[tap], added)
        elif tap in case.estimated:
            assert_level_of_each_row(declared, added)
        else:
            assert_is(declared, added)


def assert_is(declared: Noise, added: Tensor) -> None:
    """The deviation is right in each row and tensor and overall, one 10% off is not, and the law is the stated one."""
    assert declared.deviation is not None
    squares = (added / declared.deviation).square()
    for part in (squares, *squares.flatten(0, -2), *squares.split(LAYOUT.sizes, -1)):
        assert abs(_excess(part)) < SURE
    for wrong in (0.9, 1.1):
        assert abs(_excess(squares / wrong**2)) > SURE
    if declared.law in KURTOSIS:
        assert squares.square().mean() / squares.mean() ** 2 == pytest.approx(KURTOSIS[declared.law], rel=0.15)


def assert_level_of_each_row(declared: Noise, added: Tensor) -> None:
    """Rows have levels of their own, so that no number could be stated, and are Gaussian beside that."""
    rows = torch.stack([part.square().mean(-1) for part in added.flatten(0, -2).split(LAYOUT.sizes, -1)], -1)
    assert rows.mean(-1).std() / rows.mean() > SURE * (2 / LAYOUT.total) ** 0.5
    levels = rows.repeat_interleave(torch.tensor(LAYOUT.sizes), -1).sqrt()
    fourth = (added.flatten(0, -2) / levels).pow(4).mean()
    assert declared.law == "gaussian"
    assert fourth == pytest.approx(3.0, rel=0.1)


def assert_no_sum_of_gaussians(quiet: Tensor, added: Tensor) -> None:
    """What noise changed goes by what was there, or by other noise: beside its row's level it has heavier tails."""
    pair = torch.stack([quiet.flatten(), added.flatten()])
    mixed = torch.corrcoef(pair)[0, 1]
    tails = (added / added.square().mean(-1, keepdim=True).sqrt()).pow(4).mean() - 3
    assert max(abs(mixed), tails / 24**0.5) * pair.shape[1] ** 0.5 > SURE


def _excess(squares: Tensor) -> float:
    """How many standard errors the mean of squared standardised noise lies from one."""
    return float((squares.mean() - 1) / (squares.std() / squares.numel() ** 0.5))


@pytest.mark.parametrize("name", list(DEFENSES))
def test_every_registered_defense_declares_what_its_taps_show(name: str) -> None:
    defense = build(DEFENSES, name, {})
    noisy, quiet = (shown(defense, 1, scale) for scale in (1.0, 0.0))
    for tap, values in noisy.items():
        silent = torch.equal(values, quiet[tap])
        assert (noise_at(defense, tap, public(1)) is None) == silent, f"{name} at {tap}"


def test_clients_that_differ() -> None:
    """Of one nobody says which it is; of all together the sum's noise is known, rests and step lengths included."""
    settings = {"noises": "0.5,2", "learning_rates": "1,0.5,2", "local_steps": "3,1"}
    defense = build(DEFENSES, "secagg_ddp", {"mode": "paper", "mechanism": "gaussian", "protocol": "sum", **settings})
    noisy, quiet = (shown(defense, 3, scale) for scale in (1.0, 0.0))
    assert noise_at(defense, Tap.SENT, public(3), 3) == Noise("gaussian", None)
    declared = noise_at(defense, Tap.ARRIVED, public(3), 3)
    assert declared is not None
    assert_is(declared, noisy[Tap.ARRIVED] - quiet[Tap.ARRIVED])
    clipped = build(DEFENSES, "secagg_ddp", {"mode": "paper", "mechanism": "gaussian", "clips": "0.5,2"})
    alike = build(DEFENSES, "secagg_ddp", {"mode": "paper", "mechanism": "gaussian"})
    assert noise_at(clipped, Tap.SENT, public(3), 3) == noise_at(alike, Tap.SENT, public(3), 3)


def test_a_coarse_grid_leaves_the_level_open() -> None:
    """Rounding on the client's grid follows its data; rounding to fixed point is another noise beside the first."""
    coarse = build(DEFENSES, "secagg_ddp", {"bits": 8, "sigma": 0.1, "protocol": "sum"})
    assert noise_at(coarse, Tap.STEP, public(1)) == Noise("skellam", None)
    settings = {"mode": "paper", "mechanism": "gaussian", "protocol": "sum"}
    fixed, fine = (build(DEFENSES, "secagg_ddp", {"bits": bits, **settings}) for bits in (7, 32))
    assert noise_at(fixed, Tap.ARRIVED, public(1)) == Noise("unknown", None)
    declared = noise_at(fine, Tap.ARRIVED, public(1))
    assert declared is not None and declared.deviation is not None
    added = shown(fixed, 1, 1.0)[Tap.ARRIVED] - shown(fine, 1, 0.0)[Tap.ARRIVED]
    assert abs(_excess((added / declared.deviation).square())) > SURE


def test_tosses_are_surer_the_more_they_say() -> None:
    """With the bias as strong as it may be, the level follows the data by more than a hundredth."""
    defense = build(DEFENSES, "secagg_ddp", {"mechanism": "poisson_binomial", "theta": 0.25})
    assert noise_at(defense, Tap.STEP, public(1)) == Noise("poisson_binomial", None)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_scaled_noise(scale: float) -> None:
    """Controls multiply all noise, and so what is declared of it."""
    for name in ("fed_cdp", "secagg_ddp", "noise"):
        defense = build(DEFENSES, name, {})
        declared = noise_at(defense, Tap.SENT, replace(public(1), noise_scale=scale))
        assert declared is not None
        assert_is(declared, shown(defense, 1, scale)[Tap.SENT] - shown(defense, 1, 0.0)[Tap.SENT])
