"""Tables IX and X and the sweeps: their rows, at a few victims and repeats."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.evaluation import Run
from harness.papers import TABLES, Request, grid, measures
from harness.papers import accuracy as module
from harness.results import RunFolder


@pytest.fixture
def request_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    for name, value in {"QUICK_CLIENTS": 3, "QUICK_PER_ROUND": 2, "QUICK_ROUNDS": 1, "SAMPLE_STEPS": 2}.items():
        monkeypatch.setattr(module, name, value)
    small = {name: replace(one, examples=4 * one.batch_size) for name, one in module.TABLE_2.items()}
    monkeypatch.setattr(module, "TABLE_2", small)
    monkeypatch.setattr(measures, "QUICK_REPEATS", 1)
    return Request(Run(tmp_path, RunFolder(tmp_path)), tmp_path, quick=True, victims=2)


def keep(monkeypatch: pytest.MonkeyPatch, name: str, rows: list[list[Any]]) -> None:
    changed = grid.grid(name).model_copy(update={"rows": rows})
    monkeypatch.setattr(grid, "grid", lambda _: changed)


@pytest.mark.slow
def test_times(request_here: Request) -> None:
    rows = TABLES["table9"](request_here).rows
    assert len(rows) == 25 and {row["verdict"] for row in rows if row["data"] == "lfw"} == {"not at hand"}
    assert all(float(row["ms"]) > 0 for row in rows if row["data"] == "cancer")
    assert {row["ratio"] for row in rows if row["method"] == "non-private" and row["ms"] != "-"} == {"1.00"}


@pytest.mark.slow
def test_adaptive_clipping(request_here: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    # Attacks take their time and have tests of their own.
    monkeypatch.setattr(measures.AdaptiveClipping, "_resists", lambda self, method: f"{method} 2")
    rows = TABLES["table10"](request_here).rows
    assert [row["method"] for row in rows[:4]] == ["non-private", "Quantile", "AdaClip", "Fed-αCDP[σ]"]
    assert rows[3]["resilient"] == "Fed-αCDP[σ] exponential 2"
    assert all(row["accuracy"] != "-" for row in rows if row["data"] == "cancer")


@pytest.mark.slow
def test_sweep_of_pruning(request_here: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, "sweep-pruning", [["mnist", 0.0, "leaks", True], ["mnist", 0.5, "protects", True]])
    rows = TABLES["sweep-pruning"](request_here).rows
    assert [(row["pruned"], row["paper"]) for row in rows] == [("0", "leaks"), ("0.5", "protects")]
    assert all("/2" in row["ASR strict"] and row["accuracy"] != "-" for row in rows)


@pytest.mark.slow
def test_sweep_of_noise(request_here: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, "sweep-noise", [["mnist", 0.0, "-", True]])
    made = TABLES["sweep-noise"](request_here)
    (row,) = made.rows
    assert made.summary == "0 of 0 cells agree with the paper"  # which has no number for MNIST
    assert (row["variance"], row["paper"], row["verdict"]) == ("0", "-", "-") and row["accuracy"] != "-"
