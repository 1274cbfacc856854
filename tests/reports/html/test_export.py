"""Exports: each form holds the stored numbers, is read by the programs it is for, and a damaged file is told apart."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from harness.base.version import __version__
from harness.cli import run
from harness.results import CellResult, Control, Identified, ResultDocument, RunFolder, Statement, VictimRecord
from harness.scoring.summarise import summarise
from harness.scoring.verdict import fault_of

MakeCell = Callable[..., CellResult]

ENVIRONMENT = {
    "versions": {"harness": __version__}, "git": "abc", "machine": "x86_64", "processor": "p", "device": "cpu",
}  # fmt: skip
COHORT = {"clients": 100, "clients_per_round": 10, "rounds": 100}
STATEMENTS = [
    Statement(view="third party", claimed_epsilon=0.8, epsilon=2.5, delta=1e-5, unit="example", adjacency="add or remove",
              guarantee="sample-DP", notes="Gaussian noise on clipped sums", conversion="PLD", covers=False),
    Statement(view="server", claimed_epsilon=None, epsilon=4.5, delta=1e-5, unit="example", adjacency="add or remove",
              guarantee="sample-DP local view", notes="each message is noised", conversion="PLD", covers=True),
]  # fmt: skip


def write_run(folder: Path, cells: list[CellResult], **changes: Any) -> Path:
    """A run whose verdicts are those of its victims."""
    fault = fault_of(cells)
    facts: dict[str, Any] = {
        "environment": ENVIRONMENT, "cells": cells, "summary": summarise(cells), "valid": fault is None,
        "valid_reason": fault,
    }  # fmt: skip
    RunFolder(folder).write_results(ResultDocument(**facts | changes), [one for cell in cells for one in victims(cell)])
    return folder


def victims(cell: CellResult) -> list[VictimRecord]:
    """Those of a cell, one record each, 57 of which came back where it leaks."""
    hits = 57 if cell.verdict == "leaks" else 0
    names = {name: getattr(cell, name) for name in ("dataset", "defense", "attack", "tap")}
    return [
        VictimRecord(
            cell=cell.key or "", seed=0, victim=number, **names, outcome="success" if number < hits else "failure",
            rmse=0.01 if number < hits else 0.6, lineup_rank=1 if number < hits else 5, lineup_size=10,
        )
        for number in range(cell.victims)
    ]  # fmt: skip


@pytest.fixture
def cells(a_cell: MakeCell) -> list[CellResult]:
    """Of one system, at three places: it leaks, it withstood, it is undecided; and an attack that identifies."""
    works = Control(name="positive", held=True, detail="the attack leaks undefended")
    fails = Control(name="positive", held=False, detail="the attack does not leak even undefended")
    usual = {"cohort": COHORT, "privacy": STATEMENTS}
    told = Identified(rate=0.5, n=60, ci95=(0.37, 0.63), chance=0.1, p_value=0.0001, identifies=True)
    return [
        a_cell("fed_cdp", 2, controls=[works], **usual),
        a_cell("fed_cdp", 1, verdict="resilient", controls=[works], **usual),
        a_cell("fed_cdp", 0, verdict="inconclusive", controls=[fails], **usual),
        a_cell("fed_cdp", 2, attack="identify", verdict="inconclusive", asr={}, identified=told, controls=[], **usual),
    ]


@pytest.fixture
def folder(tmp_path: Path, cells: list[CellResult]) -> Path:
    return write_run(tmp_path / "run", cells)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., bytes]:
    """The file of a command that succeeds."""

    def made(name: str, *arguments: object) -> bytes:
        out = tmp_path / name
        assert run(["export", *map(str, arguments), "--out", str(out)]) == 0
        return out.read_bytes()

    return made


# CSV and JSON.


def test_csv_holds_the_stored_numbers_and_equals_json(
    export: Callable, folder: Path, cells: list[CellResult]
) -> None:
    table = pandas.read_csv(io.BytesIO(export("rows.csv", folder)), encoding="utf-8-sig")
    rows = pandas.DataFrame(json.loads(export("rows.json", folder))["rows"])
    assert list(table.columns) == list(rows.columns) and len(table) == len(cells)
    for name in table.columns:
        for left, right in zip(table[name], rows[name], strict=True):
            assert left == right or (pandas.isna(left) and pandas.isna(right)), name
    for name in ("success", "success_low", "success_of", "psnr_mean", "lineup_p", "epsilon", "surface"):
        assert pandas.api.types.is_numeric_dtype(table[name]), name
    strict = cells[0].asr["strict"]
    assert strict.ci95 is not None
    assert tuple(table.loc[0, ["success", "success_low", "success_high"]]) == (strict.rate, *strict.ci95)
    assert list(table["verdict"]) == ["leaks", "resilient", "inconclusive", "inconclusive"]
    assert list(table["epsilon"]) == [4.5] * 4 and pandas.isna(table.loc[3, "success"])
    assert table.loc[3, "identified"] == 0.5
