"""The accounting tables of S000 and S002, and that a wrong number shows."""

from pathlib import Path

import pytest

from harness.evaluation import Run
from harness.reproduction import TABLES, Request
from harness.reproduction.scaffold import accounting as s002
from harness.reproduction.scaffold.paper import TRADE_OFF
from harness.reproduction.secagg import accounting as s000
from harness.reproduction.secagg.paper import S000
from harness.results import RunFolder


@pytest.mark.parametrize("name", list(S000))
def test_every_configuration_spends_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s000, "make_accountant", lambda name: s000.s000_accountant())  # distributions take a second
    row = s000._configuration(name)
    assert row["verdict"] == "agrees"
    assert row["ε"].startswith("1.0000") and row["ε"].endswith("†") == ("epoch" in name)
    clients, rate, rounds, steps, sigma, parameters = S000[name]
    monkeypatch.setitem(S000, name, (clients, rate, rounds, steps, sigma * 0.995, parameters))
    assert s000._configuration(name)["verdict"] == "differs"


@pytest.mark.parametrize(("target", "steps"), [(1, 1), (1, 100), (10, 10)])
def test_averages(target: int, steps: int) -> None:
    assert s000._averaged(target, steps)["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("data", "viewer", "steps", "rounds", "reference"),
    [("synthetic", "third party", 50, 400, 12.91), ("MNIST", "server", 10, 400, 11.49)],
)
def test_cells(data: str, viewer: str, steps: int, rounds: int, reference: float) -> None:
    assert s002._cell(data, viewer, steps, rounds, reference)["verdict"] == "agrees"
    assert s002._cell(data, viewer, steps, rounds, reference + 0.02)["verdict"] == "differs"


def test_trade_off_row() -> None:
    row = s002._row(3.0, 10.0)
    assert row["K=40"] == "72 / 72" and row["verdict"] == "agrees"
    assert row["proven, K=40"] > 10 * TRADE_OFF[3.0, 10.0][-1]


def test_the_summary_says_against_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s002, "_row", lambda target, sigma: {"target ε": target, "verdict": "agrees"})
    comparison = TABLES["s002-tradeoff"](Request(Run(tmp_path, RunFolder(tmp_path)), tmp_path))
    assert comparison.document()["summary"] == "7 of 7 cells agree with the reference"
