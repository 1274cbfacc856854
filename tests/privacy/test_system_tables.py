"""The accounting tables of DP-SCAFFOLD and of secure aggregation, and that a wrong number shows."""

from pathlib import Path
from typing import Any

import pytest

from harness.papers import MEASURES, TABLES, Request, epsilons
from harness.papers import grid as tables
from harness.papers.grid import grid, shown

HERE: Any = Request(None, Path("none"))  # type: ignore[arg-type]


def made(table: str, change: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The row of a table that has these fields, with ours; ``change``: other printed values."""
    (printed,) = (row for row in grid(table).printed() if fields.items() <= row.items())
    (row,) = MEASURES[grid(table).measure](grid(table), HERE).rows([printed | (change or {})])
    return dict(row)


@pytest.mark.parametrize("name", list(epsilons.configurations()))
def test_every_configuration_spends_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Distributions take a second.
    monkeypatch.setattr(epsilons, "make_accountant", lambda name: epsilons.secagg_accountant())
    row = made("secagg-accounting", run=name)
    said = shown(grid("secagg-accounting").columns["ε"], row)
    assert row["verdict"] == "agrees"
    assert said.startswith("1.0000") and said.endswith("†") == ("epoch" in name)
    assert made("secagg-accounting", {"sigma": row["sigma"] * 0.995}, run=name)["verdict"] == "differs"


@pytest.mark.parametrize(("target", "steps"), [(1, 1), (1, 100), (10, 10)])
def test_averages(target: int, steps: int) -> None:
    assert made("secagg-averaging", target=target, steps=steps)["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("data", "view", "steps", "reference"),
    [("synthetic", "third party", 50, 12.91), ("MNIST", "server", 10, 11.49)],
)
def test_cells(data: str, view: str, steps: int, reference: float) -> None:
    place = {"data": data, "view": view, "K": steps, "T": 400}
    assert made("dp-scaffold-accounting", {"reference": reference}, **place)["verdict"] == "agrees"
    assert made("dp-scaffold-accounting", {"reference": reference + 0.02}, **place)["verdict"] == "differs"


def test_trade_off_row() -> None:
    row = made("dp-scaffold-tradeoff", target=3.0, sigma=10.0)
    assert shown(grid("dp-scaffold-tradeoff").columns["K=40"], row) == "72 / 72" and row["verdict"] == "agrees"
    assert row["proven"] > 10 * row["reference"][-1]
    wrong = made("dp-scaffold-tradeoff", {"reference": [*row["reference"][:-1], 73]}, target=3.0, sigma=10.0)
    assert wrong["verdict"] == "differs"


def test_the_summary_says_against_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epsilons.ScaffoldRounds, "_row", lambda self, row: {"ours": row["reference"], "proven": 1})
    assert TABLES["dp-scaffold-tradeoff"](HERE).document()["summary"] == "7 of 7 cells agree with the reference"
    assert tables.grid("dp-scaffold-tradeoff").against == "the reference"
