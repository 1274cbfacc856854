"""Bad settings are refused with one line that names the fix."""

from dataclasses import fields
from typing import Any

import pytest

from harness.base.building import build
from harness.base.errors import UsageError
from harness.defenses import DEFENSES

COMMON: list[tuple[str, Any, str]] = [
    ("clip", 0, "greater than 0"),
    ("clip", -1, "greater than 0"),
    ("clip", "nan", "greater than 0"),
    ("clip", "four", "valid number"),
    ("sigma", -0.5, "greater than or equal to 0"),
    ("sigma", "nan", "finite"),
    ("sigma", "inf", "finite"),
    ("clipping", "tensor", "'whole'"),
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
    ("adaclip", {"clip": "inf"}, "use a finite clip"),
    ("adaclip", {"mean_decay": 1.1}, "less than or equal to 1"),
    ("adaclip", {"variance_low": 2}, "lower it"),
    ("dssgd", {"share": 0}, "greater than 0"),
    ("dssgd", {"share": 1.5}, "less than or equal to 1"),
    ("dssgd", {"threshold": 0.01}, "lower threshold"),
    ("dssgd", {"epsilon": 0}, "greater than 0"),
    ("dssgd", {"epsilon": 1, "selection": "largest"}, "use selection=random or drop epsilon"),
    ("dssgd", {"epsilon": 1, "bound": "inf"}, "use a finite bound or drop epsilon"),
    ("global_dp", {"clip": "inf"}, "use a finite clip or sigma=0"),
    ("global_dp", {"max_delta": 1e-5}, "add for example epsilon=8"),
    ("global_dp", {"max_delta": 1, "epsilon": 8}, "less than 1"),
    ("global_dp", {"sigma": 0, "epsilon": 8}, "raise sigma or drop epsilon"),
    ("noise", {"amount": -1}, "greater than or equal to 0"),
    ("noise", {"param": "sd"}, "'std', 'var' or 'scale'"),
    ("noise", {"applies_to": "model"}, "'example', 'gradient' or 'update'"),
    ("secagg_ddp", {"clip": "inf"}, "use a finite clip"),
    ("secagg_ddp", {"mechanism": "gaussian"}, "use mode=paper, or mechanism=skellam"),
    ("secagg_ddp", {"bits": 64}, "less than or equal to 62"),
    ("secagg_ddp", {"theta": 0.3}, "less than or equal to 0.25"),
    ("secagg_ddp", {"protocol": "none"}, "'real' or 'sum'"),
    ("pruning", {"threshold": 70}, "less than 1"),
    ("pruning", {"threshold": -0.1}, "greater than or equal to 0"),
    ("pruning", {"mode": "tensor"}, "'global' or 'layer'"),
    ("quantile", {"clip": "inf"}, "use a finite clip or sigma=0"),
    ("quantile", {"sigma_b": 0.25}, "raise it above sigma/2=3, or leave it out"),
    ("quantile", {"sigma_b": 3}, "raise it above sigma/2=3, or leave it out"),
    ("quantile", {"sigma_b": "inf"}, "set rate=0 or a finite sigma_b"),
    ("quantile", {"quantile": 1.5}, "less than or equal to 1"),
    ("fed_dp", {}, "did you mean"),
]
MISSPELT = {"sgima": "sigma"}
CASES = OWN + [
    (name, {key: value}, words)
    for name in DEFENSES
    if ":" not in name  # whose settings are the frameworks' own
    for key, value, words in COMMON
    if MISSPELT.get(key, key) in {field.name for field in fields(DEFENSES[name])}
]


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
