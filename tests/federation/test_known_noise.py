"""The noise a defense declares at a tap is the noise that is measured there."""

from dataclasses import replace

import pytest
import torch

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Custom, Operation, Point
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.knowledge import carrying, cut_at, noise_at
from harness.federation.taps import Tap
from harness.observation import Chosen, Noise

CONTEXT = RoundContext(0, 0, 0.05, Cohort(batch_size=4), Layout(("w",), ((3,),)), ((0, 0),))

CASES = {
    "fed_cdp, sum": ("fed_cdp", {"sigma": 6.0, "clip": 2.0}, "T2.step", 1, Noise("gaussian", 3.0)),
    "fed_cdp, sum, update of four steps": ("fed_cdp", {"sigma": 6.0, "clip": 2.0}, "T1.out", 4, Noise("gaussian", 1.5)),
    "noise on the update": ("noise", {"amount": 0.1}, "T1.out", 2, Noise("gaussian", 1.0)),
    "noise on the update, before it": ("noise", {"amount": 0.1}, "T2.step", 1, None),
    "two noises": (
        "fed_cdp+noise", {"fed_cdp.sigma": 6.0, "fed_cdp.clip": 2.0, "noise.amount": 0.2}, "T1.out", 1,
        Noise("gaussian", 5.0),
    ),
    "clipped afterwards": ("fed_cdp+fed_sdp", {"fed_sdp.noise_at": "client"}, "T1.out", 1, Noise("unknown", None)),
    "pruned afterwards": ("noise+pruning", {"noise.applies_to": "gradient"}, "T1.out", 1, Noise("unknown", None)),
}  # fmt: skip


@pytest.mark.parametrize(("defense", "args", "tap", "steps", "expected"), CASES.values(), ids=CASES)
def test_declared(defense: str, args: dict[str, object], tap: str, steps: int, expected: Noise | None) -> None:
    found = noise_at(build(DEFENSES, defense, args), Tap(tap), CONTEXT, steps)
    assert (found is None) == (expected is None)
    if found and expected:
        assert found.law == expected.law and found.deviation == pytest.approx(expected.deviation)


def test_a_clip_of_each_tensor_leaves_each_a_level_of_its_own() -> None:
    for clipping in ("layer", "whole"):
        args = {"noise.applies_to": "gradient", "fed_sdp.noise_at": "client", "fed_sdp.clipping": clipping}
        assert noise_at(build(DEFENSES, "noise+fed_sdp", args), Tap.SENT, CONTEXT) == Noise("unknown", None, clipping)


# defense, settings, tap, looks; whether more can be read of the noise's level than attackers are told
FOLLOWS = {
    "a level that is told": ("fed_acdp", {}, "T2.step", 1, False),
    "that of many looks": ("fed_acdp", {}, "T2.step", 10, True),
    "noise of the same law on top": ("fed_acdp+noise", {"noise.amount": 1e-9}, "T1.out", 1, False),
    "noise of another law": (
        "fed_acdp+noise",
        {"noise.amount": 1e-9, "noise.distribution": "laplace"},
        "T1.out",
        1,
        True,
    ),
    "pruned": ("fed_acdp+pruning", {"pruning.threshold": 0.01}, "T1.out", 1, True),
    "clipped": ("fed_acdp+fed_sdp", {"fed_sdp.clip": 1e6, "fed_sdp.sigma": 0.0}, "T0.post", 1, True),
    "a fixed level, pruned": ("fed_cdp+pruning", {"pruning.threshold": 0.01}, "T1.out", 1, False),
    "a fixed level, many looks": ("fed_cdp", {}, "T2.step", 10, False),
}


@pytest.mark.parametrize(("defense", "args", "tap", "looks", "unread"), FOLLOWS.values(), ids=FOLLOWS)
def test_a_level_that_follows_private_data_is_lost_on_the_way_and_not_forgotten(
    defense: str, args: dict[str, object], tap: str, looks: int, unread: bool
) -> None:
    one = replace(CONTEXT, cohort=Cohort(batch_size=1))
    found = noise_at(build(DEFENSES, defense, args), Tap(tap), one, looks=looks)
    assert found is not None and found.unread == unread
    assert found.follows == ("fed_acdp" in defense)
    assert (found.level is not None) == (defense == "fed_acdp")


CHANCE = Chosen((10,), choice="chance", least=2e-3)
TENTHS, WHOLE = (
    {"pruning.threshold": 0.75, "dssgd.share": 0.1},
    {"fed_sdp.noise_at": "client", "fed_sdp.clipping": "whole"},
)
SPARSE: dict[str, tuple[str, dict[str, object], Chosen | None]] = {
    "noise after it": ("pruning+noise", {"pruning.threshold": 0.75}, Chosen((25,), choice="largest")),
    "the fewest of two": ("pruning+dssgd+noise", TENTHS, CHANCE),
    "of two the order is open": (
        "pruning+dssgd+noise",
        {"pruning.threshold": 0.95, "dssgd.selection": "largest"},
        Chosen((5,)),
    ),
    "what was kept decides too": ("pruning+noise", {"pruning.error_feedback": True}, Chosen((30,))),
    "chosen by chance": ("dssgd+noise", {}, CHANCE),
    "all that are large enough": ("dssgd+noise", {"dssgd.share": 1}, replace(CHANCE, counts=(100,))),
    "all": ("dssgd+noise", {"dssgd.share": 1, "dssgd.threshold": -1}, None),
    "the largest, then cut": ("dssgd+noise", {"dssgd.selection": "largest"}, Chosen((10,), choice="largest")),
    "of each tensor": ("pruning+noise", {"pruning.mode": "layer"}, Chosen((30,), "layer", "largest")),
    "then a clip": ("pruning+fed_sdp", WHOLE, Chosen((30,), choice="largest", clipped=True)),
    "after a clip": (
        "fed_sdp+pruning+noise",
        {"fed_sdp.noise_at": "client", "fed_sdp.sigma": 0},
        Chosen((30,), choice="largest"),
    ),
    "between clips of tensors": (
        "fed_cdp+pruning+fed_sdp",
        {"fed_cdp.sigma": 0, "fed_sdp.noise_at": "client"},
        Chosen((30,)),
    ),
    "zeros are seen": ("pruning", {"threshold": 0.75}, None),
    "noise before it": ("noise+pruning", {"noise.applies_to": "gradient"}, None),
    "nothing is left out": ("noise", {}, None),
    "nothing says how many": ("pruning+noise", {"pruning.threshold": 0.0}, None),
}


@pytest.mark.parametrize(("defense", "args", "expected"), SPARSE.values(), ids=SPARSE)
def test_which_coordinates_carry_more_than_noise(
    defense: str, args: dict[str, object], expected: Chosen | None
) -> None:
    context, made = replace(CONTEXT, layout=Layout(("w",), ((100,),))), build(DEFENSES, defense, args)
    found = noise_at(made, Tap.SENT, context)
    assert carrying(made, Tap.SENT, context, found) == expected
    assert carrying(made, Tap.STEP, context, noise_at(made, Tap.STEP, context)) is None


def test_looks_and_steps_are_told() -> None:
    context, made = replace(CONTEXT, layout=Layout(("w",), ((100,),))), build(DEFENSES, "dssgd+noise", {})
    found = noise_at(made, Tap.SENT, context, 2, 4)
    expected = Chosen((10,), choice="chance", least=pytest.approx(1e-3), looks=4)
    assert carrying(made, Tap.SENT, context, found, 2, 4) == expected


CUT: dict[str, tuple[str, dict[str, object], str, float | None]] = {
    "an update of two steps": ("dssgd", {"bound": 0.02}, "T1.out", 0.2),
    "the tighter of two": ("dssgd+noise", {"dssgd.bound": 0.02}, "T0.in", 0.2),
    "before it": ("dssgd", {"bound": 0.02}, "T2.step", None),
    "never": ("dssgd", {"bound": float("inf")}, "T1.out", None),
    "by nobody": ("pruning", {}, "T1.out", None),
}


@pytest.mark.parametrize(("defense", "args", "tap", "expected"), CUT.values(), ids=CUT)
def test_where_coordinates_are_cut(defense: str, args: dict[str, object], tap: str, expected: float | None) -> None:
    assert cut_at(build(DEFENSES, defense, args), Tap(tap), CONTEXT, 2) == pytest.approx(expected)


def test_looks_are_averaged() -> None:
    defense = build(DEFENSES, "noise", {"applies_to": "gradient", "amount": 0.3, "distribution": "laplace"})
    found = noise_at(defense, Tap.STEP, CONTEXT, looks=9)
    assert found is not None and found.law == "unknown" and found.deviation == pytest.approx(0.1)


@pytest.mark.parametrize("deviation", [-1.0, float("nan"), float("inf"), torch.tensor([0.1, -0.1])])
def test_a_deviation_that_is_none_is_told(deviation: float | torch.Tensor) -> None:
    with pytest.raises(UsageError, match="deviation is negative or no number"):
        Noise("gaussian", deviation)


def test_deviations_are_of_all_coordinates() -> None:
    class Own(Defense):
        def operations(self, cohort: Cohort) -> list[Operation]:
            return [Custom(lambda mean, _: mean, at=Point.STEP, adds=Noise("gaussian", torch.full((7,), 0.1)))]

    with pytest.raises(UsageError, match=r"shape \(7,\); give one number, or one for each of the network's 3 coord"):
        noise_at(Own(), Tap.STEP, CONTEXT)


def test_a_mistyped_law_is_told() -> None:
    with pytest.raises(UsageError, match="law 'laplacian' is not known; declare one of gaussian, laplace, "):
        Noise("laplacian", 0.1)  # pyright: ignore[reportArgumentType]
