"""The accounting columns of the papers' tables."""

import sys

import pytest

from harness.reproduction.fed_acdp.table6 import table6_accounting
from harness.reproduction.fed_acdp.table7 import table7_accounting
from harness.reproduction.fed_acdp.table8 import _row as table8_row
from harness.reproduction.fed_acdp.table11 import _rounds, _target


def test_table6_but_for_cancer() -> None:
    rows = table6_accounting()
    assert len(rows) == 15
    assert all((row["verdict"] == "irreproducible") == (row["data"] == "cancer") for row in rows)
    mnist = next(row for row in rows if row["method"] == "Fed-CDP" and row["data"] == "mnist")
    assert (mnist["ε"], mnist["PLD"], mnist["with √M"]) == ("0.823", "0.601", "1.468")
    lfw = next(row for row in rows if row["method"] == "Fed-CDP" and row["data"] == "lfw")
    assert lfw["printed q"] == "9.794"


def test_table7() -> None:
    rows = table7_accounting()
    ours = [row for row in rows if row["method"] == "Fed-αCDP"]
    assert [row["ε"] for row in ours] == ["0.285", "0.672", "0.478", "0.184", "0.084"]
    assert all(row["verdict"] == "agrees" for row in ours)
    assert [row["verdict"] for row in rows if row["method"] == "Fed-SDP"] == ["agrees"] * 4 + ["irreproducible"]


@pytest.mark.parametrize(("policy", "data", "paper"), [
    ("staircase", "mnist", 95), pytest.param("linear", "cancer", 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_table8_agrees(policy: str, data: str, paper: int) -> None:
    assert table8_row(policy, data, paper)["verdict"] == "agrees"


def test_table8_marks_what_nothing_reproduces() -> None:
    row = table8_row("cyclic", "cancer", 3)
    assert (row["rounds"], row["verdict"]) == (">3", "irreproducible")


@pytest.mark.parametrize(("name", "paper"), [("base", 123.354), ("advanced", 7.450), ("zcdp", 1.159), ("rdp", 0.823)])
def test_table11_targets(name: str, paper: float) -> None:
    assert _target(name, paper, 0.601)["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("base", (97, 97, 97)),
        ("advanced", (95, 95, 94)),
        ("zcdp", (95, 95, 96)),
        pytest.param("rdp", (95, 95, 96), marks=pytest.mark.slow),
    ],
)
def test_table11_rounds(name: str, rounds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss distributions beside the rounds take seconds.
    monkeypatch.setattr(sys.modules[_rounds.__module__], "epsilon_of", lambda accountant, event: 0.0)
    for policy, paper in zip(("linear", "staircase", "exponential"), rounds, strict=True):
        row = _rounds(name, policy, paper)
        assert (row["rounds"], row["verdict"]) == (paper, "agrees")
