"""Tables as files: what they may hold, and how a line of one is printed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.cli import run
from harness.datasets import mnist
from harness.papers import GRIDS, MEASURES, RENAMED, TABLES, Request
from harness.papers import grid as tables
from harness.papers.grid import Grid, at_hand, grid, run_grid, shown

TINY: dict[str, Any] = {
    "source": "a paper", "title": "Tiny", "measure": "twice", "fields": ["x", "paper", "quick"],
    "rows": [[1.0, 2.0, True], [2.0, 5.0, False]], "victims": (9, 4), "facts": {"of": "it"},
    "columns": {"x": "{x}", "ours": "{ours:.2f}", "absent": "{nothing:.1f} of it"},
    "header": ["{scale} {of}", {"quick": "fewer"}, {"full": "all {victims}"}, "@said"], "notes": ["seeds {seeds}"],
}  # fmt: skip


class Twice:
    def __init__(self, table: Grid, request: Request) -> None:
        pass

    def rows(self, printed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in printed:
            ours = 2 * row["x"]
            yield row | {"ours": ours, "nothing": None, "verdict": "agrees" if ours == row["paper"] else "differs"}

    def lines(self, name: str) -> list[str]:
        return {"said": ["by the measure"]}[name]


@pytest.mark.parametrize("quick", [True, False])
def test_a_tiny_table(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "grid", lambda name: Grid.model_validate(TINY))
    request: Any = Request(None, Path("none"), quick=quick, seeds=(3,))  # type: ignore[arg-type]
    made = run_grid("tiny", {"twice": Twice}, request)
    first = {"x": 1.0, "ours": "2.00", "absent": "-", "verdict": "agrees"}
    assert made.rows == ([first] if quick else [first, first | {"x": 2.0, "ours": "4.00", "verdict": "differs"}])
    scale = "quick: 4 victims instead of 9 it" if quick else "9 victims it"
    assert made.header == [scale, "fewer" if quick else "all 9", "by the measure"]
    assert made.notes == ["seeds [3]"]


def test_a_bare_value_keeps_its_type_and_a_list_has_places() -> None:
    assert shown("{x}", {"x": 0.5}) == 0.5 and shown("{x[1]:.1f}/{y}", {"x": [1, 2], "y": 3}) == "2.0/3"
    assert shown("{x[0]}", {"x": None}) == "-"


@pytest.mark.parametrize("wrong", [{"rows": [[1.0, 2.0]]}, {"colums": {}}, {"header": [{"slow": "x"}]}])
def test_a_file_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Grid.model_validate(TINY | wrong)


def test_sweeps_say_no_more_than_the_paper() -> None:
    """Section 4.1: pruning helps "once more than" these shares are pruned; 4.2: on LFW a variance of 0.01 is enough."""
    beyond = {"mnist": 0.4, "cifar10": 0.5, "lfw": 0.8}
    for row in grid("sweep-pruning").printed():
        assert row["paper"] == ("protects" if row["level"] > beyond[row["data"]] else "leaks"), row
    said = {row["level"]: row["paper"] for row in grid("sweep-noise").printed() if row["data"] == "lfw"}
    assert said.pop(0.0) == "leaks" and set(said) > {0.001, 0.01}
    assert all(paper == ("protects" if level >= 0.01 else "-") for level, paper in said.items())


def test_every_file_is_a_table_with_a_measure() -> None:
    assert {f"{name}.toml" for name in GRIDS} == {file.name for file in tables._TABLES.iterdir()}
    for name in GRIDS:
        table = grid(name)
        assert table.measure in MEASURES and table.source and table.printed(quick=True)
        assert "verdict" not in {*table.columns, *table.fields}


def test_an_old_name_leads_to_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(RENAMED.values()) <= set(TABLES) and not set(RENAMED) & set(TABLES)
    assert run(["reproduce", "s002-gap"]) == 2
    assert capsys.readouterr().err.endswith("table s002-gap is called dp-scaffold-gap now; use that name\n")


def put(root: Path, folder: str) -> None:
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (raw / name).touch()


@pytest.mark.parametrize(
    ("name", "present", "used", "words"),
    [
        ("mnist", ["MNIST"], "mnist", "full training split"),
        ("mnist", [], "mnist-sample", "bundled sample only"),
        ("fashion-mnist", ["FashionMNIST", "MNIST"], "fashion-mnist", "fashion-mnist: full training split"),
        ("fashion-mnist", ["MNIST"], "mnist", "surrogate data, mnist: full training split; the real one"),
        ("fashion-mnist", [], "mnist-sample", "surrogate data, mnist: bundled sample only"),
        ("emnist", [], None, "harness data fetch emnist"),
        ("adult", [], None, "harness data fetch adult"),
    ],
)
def test_the_line_names_what_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, present: list[str], used: str | None, words: str
) -> None:
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", tmp_path / "absent")
    for folder in present:
        put(tmp_path, folder)
    found, line = at_hand(name, tmp_path)
    assert found == used and words in line
