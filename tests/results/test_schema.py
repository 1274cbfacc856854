"""The result document: plain JSON whatever goes in, and nothing in it that the schema does not know."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.results import (
    CellResult,
    Lineup,
    Outcomes,
    Rate,
    ResultDocument,
    Statement,
    Summary,
    VictimRecord,
)

CELL = {
    "dataset": "mnist-sample",
    "model": "lenet",
    "defense": "fed_cdp",
    "attack": "cpl",
    "surface": 2,
    "tap": "T2.step",
    "seeds": [0],
    "victims": 64,
}


def strict_json(text: str) -> object:
    """Parsed JSON; NaN and Infinity, which are not JSON, are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_full_document_survives_the_round_trip() -> None:
    cell = CellResult(
        **CELL,
        defense_args={"sigma": 6.0, "schedule": [1.0, 2.0]},
        metrics={"rmse": Summary(mean=0.4, std=0.1, median=0.39, ci95=(0.38, 0.42))},
        asr={"strict": Rate(rate=0.5, successes=32, n=64, ci95=(0.37, 0.63))},
        lineup=Lineup(rate=0.5, mean_rank=3.0, p_value=0.0001),
        verdict="leaks",
        outcomes=Outcomes(success=32, failure=32),
        privacy=[Statement(view="server", epsilon=0.8, guarantee="sample-DP local view", notes="")],
        seconds=1.5,
    )
    document = ResultDocument(environment={"threads": 2}, cells=[cell])
    assert ResultDocument.model_validate(strict_json(document.model_dump_json())) == document


@given(st.floats())
def test_only_finite_numbers_are_written(value: float) -> None:
    summary = Summary(mean=value, ci95=(0.0, value))
    written = strict_json(summary.model_dump_json())
    assert written["mean"] == (value if math.isfinite(value) else None)
    assert (written["reason"] is None) == math.isfinite(value)
    assert written["ci95"] == ([0.0, value] if math.isfinite(value) else None)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numpy_numbers_are_numbers_and_their_nan_is_null(kind: type) -> None:
    assert Lineup(rate=kind(0.5)).rate == 0.5
    assert Lineup(rate=kind("nan")).rate is None


def test_infinity_inside_arguments_becomes_null() -> None:
    cell = CellResult(**CELL, defense_args={"clip": math.inf, "bounds": (1.0, math.nan)})
    assert cell.defense_args == {"clip": None, "bounds": [1.0, None]}


def test_a_given_reason_for_an_absent_metric_is_kept() -> None:
    assert Summary(reason="LPIPS has no weights here").reason == "LPIPS has no weights here"


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": "perhaps"},
        {"surface": 3},
        {"role": "control"},
        {"control": "positive"},
        {"victims": -1},
        {"epsilon": 1.0},
        {"asr": {"loose": {"rate": 1.0}}},
        {"asr": {"strict": {"rate": 1.0, "successes": 3, "n": 2}}},
        {"defense_args": {"callback": print}},
    ],
    ids=str,
)
def test_what_the_schema_does_not_know_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CellResult(**(CELL | wrong))


def test_an_impossible_cell_needs_no_measurements() -> None:
    cell = CellResult(**CELL, not_applicable_reason="no such tap", outcomes=Outcomes(not_applicable=64))
    assert (cell.metrics, cell.asr, cell.verdict) == ({}, {}, "inconclusive")


def test_a_result_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError):
        CellResult(**CELL).verdict = "resilient"


def test_a_diverged_victim_is_recorded_with_nulls() -> None:
    who = {"cell": "ab" * 10, "dataset": "d", "defense": "none", "attack": "dlg", "tap": "T0.in", "seed": 0}
    record = VictimRecord(**who, victim=3, outcome="diverged", rmse=math.nan, loss=math.inf)
    assert strict_json(record.model_dump_json()).items() >= {"rmse": None, "loss": None, "victim": 3}.items()
