"""Bad settings are refused with one line that names the mend."""

from typing import Any

import pytest

from harness.building import build
from harness.defenses import DEFENSES
from harness.errors import UsageError

COMMON: list[tuple[str, Any, str]] = [
    ("clip", 0, "greater than 0"),
    ("clip", -1, "greater than 0"),
    ("clip", "nan", "greater than 0"),
    ("clip", "four", "valid number"),
    ("sigma", -0.5, "greater than or equal to 0"),
    ("sigma", "nan", "finite"),
    ("sigma", "inf", "finite"),
    ("clipping", "tensor", "'layer' or 'whole'"),
    ("sgima", 1, "did you mean 'sigma'?"),
]
OWN: list[tuple[str, dict[str, Any], str]] = [
    ("none", {"sigma": 1}, "it has: no settings"),
    ("fed_sdp", {"noise_at": "server"}, "'aggregate', 'receive' or 'client'"),
    ("fed_sdp", {"noise_split": "half"}, "'full' or 'share'"),
    ("fed_sdp", {"clip": "inf"}, "use a finite clip or sigma=0"),
    ("fed_cdp", {"clip": "inf"}, "use a finite clip or sigma=0"),
    ("fed_cdp", {"convention": "batch"}, "'sum', 'per_example' or 'mean'"),
    ("fed_acdp", {"s_mode": "max"}, "'example_max', 'batch_max' or 'example_mean'"),
    ("fed_acdp", {"floor": -1}, "greater than or equal to 0"),
    ("fed_acdp", {"floor": "nan"}, "finite"),
    ("fed_acdp", {"cycles": 0}, "greater than or equal to 1"),
    ("fed_acdp", {"cycles": 1.5}, "valid integer"),
    ("fed_acdp", {"sigma_end": 0}, "greater than 0"),
    *[
        ("fed_acdp", {"policy": policy, "sigma": 6}, "drop sigma or use schedule=sigma")
        for policy in ("linear", "staircase", "exponential")
    ],
    ("fed_acdp", {"policy": "linear", "schedule": "sigma", "sigma": 2}, "raise sigma"),
    ("fed_acdp", {"policy": "cyclic", "sigma": 2}, "raise sigma"),
    ("fed_dp", {}, "did you mean"),
]
CASES = OWN + [(name, {key: value}, words) for name in DEFENSES if name != "none" for key, value, words in COMMON]


@pytest.mark.parametrize(("name", "settings", "words"), CASES)
def test_refused_in_one_line(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(DEFENSES, name, settings)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert name in message


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fed_sdp", {"clip": "inf", "sigma": 0}),
        ("fed_cdp", {"clip": "2.5", "sigma": "0.1"}),
        ("fed_alphacdp", {"policy": "cyclic", "sigma": 15}),
        ("fed_acdp", {"policy": "linear", "schedule": "sigma", "sigma": 15}),
        ("non-private", {}),
    ],
)
def test_accepted_and_converted(name: str, settings: dict[str, Any]) -> None:
    parameters = build(DEFENSES, name, settings).parameters()
    for key, value in settings.items():
        assert parameters[key] == (value if key in ("policy", "schedule") else float(value))
