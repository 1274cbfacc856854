"""The accounting columns of the papers' tables."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.papers import MEASURES, Request, fed_acdp
from harness.papers.grid import grid


def accounted(table: str, **fields: Any) -> list[Any]:
    """The rows of a table that have these fields, with ours."""
    run: Any = SimpleNamespace(resume=False)
    request = Request(run, Path("none"), quick=True)
    here: Any = MEASURES[grid(table).measure](grid(table), request)
    rows = [row for row in grid(table).printed() if fields.items() <= row.items()]
    return [row | here.accounted(row) for row in rows]


def test_table6_but_for_cancer() -> None:
    rows = accounted("table6")
    assert len(rows) == 15
    assert all((row["verdict"] == "irreproducible") == (row["data"] == "cancer") for row in rows)
    mnist = next(row for row in rows if row["method"] == "Fed-CDP" and row["data"] == "mnist")
    assert [round(mnist[name], 3) for name in ("ours", "pld", "by_layer")] == [0.823, 0.601, 1.468]
    lfw = next(row for row in rows if row["method"] == "Fed-CDP" and row["data"] == "lfw")
    assert round(lfw["printed_q"], 3) == 9.794


def test_table7() -> None:
    ours = accounted("table7", method="Fed-αCDP")
    assert [round(row["ours"], 3) for row in ours] == [0.285, 0.672, 0.478, 0.184, 0.084]
    assert all(row["verdict"] == "agrees" for row in ours)
    sdp = accounted("table7", method="Fed-SDP")
    assert [row["verdict"] for row in sdp] == ["agrees"] * 4 + ["irreproducible"]


@pytest.mark.parametrize(("policy", "data", "paper"), [
    ("staircase", "mnist", 95), pytest.param("linear", "cancer", 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_table8_agrees(policy: str, data: str, paper: int) -> None:
    (row,) = accounted("table8", policy=policy, data=data)
    assert (row["paper"], row["verdict"]) == (paper, "agrees")


def test_table8_marks_what_nothing_reproduces() -> None:
    (row,) = accounted("table8", policy="cyclic", data="cancer")
    assert (row["rounds"], row["verdict"]) == (">3", "irreproducible")


@pytest.mark.parametrize(("name", "paper"), [("base", 123.354), ("advanced", 7.450), ("zcdp", 1.159), ("rdp", 0.823)])
def test_table11_targets(name: str, paper: float) -> None:
    (row,) = accounted("table11", accountant=name, noise="fixed")
    assert (row["target"], row["verdict"]) == (paper, "agrees")


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("base", (97, 97, 97)),
        pytest.param("advanced", (95, 95, 94), marks=pytest.mark.slow),
        pytest.param("zcdp", (95, 95, 96), marks=pytest.mark.slow),
        pytest.param("rdp", (95, 95, 96), marks=pytest.mark.slow),
    ],
)
def test_table11_rounds(name: str, rounds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss distributions beside the rounds take seconds.
    monkeypatch.setattr(fed_acdp, "epsilon_of", lambda accountant, event: 0.0)
    for policy, paper in zip(("linear", "staircase", "exponential"), rounds, strict=True):
        (row,) = accounted("table11", accountant=name, noise=policy)
        assert (row["rounds"], row["paper"], row["verdict"]) == (paper, paper, "agrees")
