"""What a document says, in short plain words."""

import pytest

from harness.base import presence
from harness.base.building import build
from harness.defenses import DEFENSES
from harness.reports import text
from harness.reports.text import arguments
from harness.results import Bound, Ceiling, Rate, Statement
from harness.results.record import without_non_finite


def defaults(defense: str) -> dict[str, object]:
    """The settings of a defense as a document has them."""
    return without_non_finite(build(DEFENSES, defense, {}).parameters())


@pytest.mark.parametrize(
    ("defense", "given", "shown"),
    [
        ("fed_cdp", {}, ""),
        ("fed_cdp", {"sigma": 3.0, "convention": "mean"}, "sigma=3 convention=mean"),
        ("pruning", {"mode": "layer"}, "mode=layer"),
        ("dp_local", {"clipping": "layer", "noise_scale": 100.0}, "clipping=layer noise x100"),
        ("secagg_ddp", {"mechanism": "gaussian", "clips": [1.0, 2.0]}, "mechanism=gaussian clips=[1.0, 2.0]"),
        ("fed_sdp+noise", {"fed_sdp.sigma": 5.0, "noise.amount": 1.0}, "fed_sdp.sigma=5 noise.amount=1"),
        ("somebody's", {"sigma": 6.0, "depth": None}, "sigma=6 depth=None"),
        ("somebody's", {"\x1b[1m" + "x" * 500: 1}, "?[1m" + "x" * 53 + "..."),
    ],
)
def test_arguments_are_those_that_differ_from_the_defaults(defense: str, given: dict[str, object], shown: str) -> None:
    usual = {} if defense == "somebody's" else defaults(defense)
    assert arguments(defense, {"noise_scale": 1.0} | usual | given) == shown


def test_every_setting_of_every_defense_is_shown_once_it_is_not_the_default() -> None:
    for name in DEFENSES:
        usual = defaults(name)
        assert arguments(name, usual) == ""
        for setting in usual:
            assert arguments(name, usual | {setting: "other"}) == f"{setting}=other"


@pytest.mark.parametrize("bound", [0.0, 1e-5, 0.04, 0.0401638, 0.0344694, 0.1, 0.99951, 1.0])
def test_a_bound_from_above_is_not_shown_below_itself(bound: float) -> None:
    shown = float(text.percent_up(bound).removesuffix("%")) / 100
    assert bound - 1e-9 <= shown < bound + 0.001
    event = Ceiling(event="strict image", measured=Rate(), ceiling=bound)
    promised = Statement(view="server", guarantee="sample-DP", told_apart=bound, notes="")
    assert f"at most {text.percent_up(bound)}" in text.at_most(Bound(theorem="Gaussian noise", events=[event]), event)
    assert f"TPR <= {text.percent_up(bound)} at" in text.told(promised)


@pytest.mark.parametrize("bound", [0.0, 1e-30, 0.0401638, 0.1 + 0.2, 1.0004, 9.996, 19.14, 999.9, 100_049.0, 1e300])
@pytest.mark.parametrize("digits", [2, 3, 4])
def test_a_bound_is_not_rounded_to_the_wrong_side(bound: float, digits: int) -> None:
    above, below = float(presence.up(bound, digits)), float(presence.down(bound, digits))
    assert below * (1 - 1e-12) <= bound <= above * (1 + 1e-12)
    assert above - below <= bound * 10 ** (1 - digits) * (1 + 1e-9)
