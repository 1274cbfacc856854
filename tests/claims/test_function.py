"""``harness.claims(...)``: the rows of the command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness.base.errors import UsageError

Harness = Callable[..., Any]


def test_it_gives_the_rows_of_the_command(harness: Harness) -> None:
    from harness import claims

    line = "claims flower:LocalDpMod --arg clipping_norm=1 --arg sensitivity=1 --arg epsilon=8 --arg delta=1e-5"
    told = json.loads(harness(*line.split(), "--rounds", "10", "--json").out)
    arg = {"clipping_norm": 1, "sensitivity": 1, "epsilon": 8, "delta": 1e-5}
    rows = claims("flower:LocalDpMod", arg=arg, rounds=10)
    assert told["rows"] and json.loads(json.dumps(rows)) == told["rows"]


def test_a_delta_that_lets_one_be_published_is_warned_of() -> None:
    def warned(**facts: Any) -> list[str]:
        given = {"clipping_norm": 1, "epsilon": 1, "sensitivity": 2, "delta": 1e-5}
        rows = harness.claims("flower:LocalDpMod", arg=given, **facts)
        return [one for row in rows for one in row["warnings"] if "published whole" in one]

    assert warned(clients=1000, delta=1e-3) and not warned(clients=999, delta=1e-3) and not warned(delta=1e-3)


@pytest.mark.parametrize("given", [None, False, np.False_])
def test_that_last_batches_are_kept_may_be_said_in_every_way(given: Any) -> None:
    arg = {"clipping_norm": 1, "sensitivity": 1, "epsilon": 8, "delta": 1e-5}
    rows = [harness.claims("flower:LocalDpMod", arg=arg, **facts) for facts in ({}, {"drop_last": given})]
    assert repr(rows[0]) == repr(rows[1])


def test_the_package_keeps_its_parts() -> None:
    from harness.claims import answers

    assert harness.claims.answers is answers and callable(harness.claims)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: harness.claims("flower:LocalDpMod", round=3), "'round' in Python; use 'rounds'"),
        (lambda: harness.claims("flower:LocalDpModd"), "flower:LocalDpMod"),
        (lambda: harness.claims("absent.toml"), "absent.toml"),
        (lambda: harness.claims(Path("absent.toml")), "absent.toml"),
        # A mistyped word was neither "equal" nor "private", and "zero-out" had the epsilon of public weights.
        (lambda: harness.claims("flower:LocalDpMod", weights="Equal"), "weights: .*'private', got 'Equal'"),
        (lambda: harness.claims("flower:LocalDpMod", buffers="no"), "buffers: .*got 'no'"),
        (lambda: harness.claims("flower:LocalDpMod", delta="small"), "delta: .*got 'small'"),
        (lambda: harness.claims("flower:LocalDpMod", framework_version=1.2), "framework_version: .*got 1.2"),
        (lambda: harness.claims("flower:LocalDpMod", model=True), "model: .*got True"),
        (lambda: harness.claims("flower:LocalDpMod", arg={"no": 1}), "no filter of the sources has an argument 'no'"),
    ],
)
def test_a_mistake_is_one_line(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        call()
    assert "\n" not in str(told.value)
