"""Shards: each unit in one of them, the same bytes whatever their number, and a merger that names what is missing."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.attacks import SUITES
from harness.base.errors import UsageError
from harness.cli import run
from harness.experiment import cell_settings
from harness.parallel.units import Shard, Unit

Command = Callable[..., Any]
Small = tuple[str, ...]


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "1/", "a/b", "-1/2", "1/0", "1/99999", "1/2/3", ""])
def test_no_such_shard(text: str) -> None:
    with pytest.raises(UsageError, match="shard"):
        Shard.parse(text)


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_every_unit_is_in_one_shard(count: int) -> None:
    cell = cell_settings(dataset="digits")
    units = [Unit(f"{number * 7919 % 23:02d}", (cell,)) for number in range(23)]
    dealt = [Shard(index, count).of(units) for index in range(1, count + 1)]
    assert Counter(unit.name for part in dealt for unit in part) == Counter(unit.name for unit in units)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    order = [unit.name for unit in units]
    assert all(
        [order.index(unit.name) for unit in part] == sorted(order.index(unit.name) for unit in part) for part in dealt
    )


@pytest.mark.parametrize(
    ("count", "folders"),
    [pytest.param(2, 1, marks=pytest.mark.slow), (2, 2), pytest.param(8, 1, marks=pytest.mark.slow)],
)
def test_the_same_bytes_as_one_process(
    harness: Command, small: Small, content: Callable[[Path], Any], count: int, folders: int
) -> None:
    assert harness(*small, "--out", "one").code == 0
    places = [f"part{index % folders}" for index in range(count)]
    for index, place in enumerate(places, start=1):
        done = harness(*small, "--shard", f"{index}/{count}", "--out", place)
        assert done.code == 0 and f"shard {index}/{count} is done" in done.out
    merged = harness("merge", *dict.fromkeys(places), "--out", "all", "--json")
    assert merged.code == 0
    assert content(Path("all")) == content(Path("one"))
    assert json.loads(merged.out)["cells"] == json.loads(Path("all/results.json").read_text())["cells"]


def test_what_is_settled_is_skipped_alike_in_shards(
    harness: Command, content: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place's members are one shard's, and no other would make them."""
    monkeypatch.setitem(SUITES, "trio-1", {"analytic": {}, "identify": {}, "cpl": {"max_iterations": 2}})
    asked = (
        "evaluate", "--dataset", "digits", "--model", "mlp,logistic", "--defense", "none", "--attack", "trio-1",
        "--surface", "2", "--victims", "6", "--no-pictures", "--threads", "1",
    )  # fmt: skip
    assert harness(*asked, "--out", "one").code == 0
    for index in (1, 2):
        assert harness(*asked, "--shard", f"{index}/2", "--out", "part").code == 0
    assert harness("merge", "part", "--out", "all").code == 0
    assert content(Path("all")) == content(Path("one"))
    cells = json.loads(Path("all/results.json").read_text())["cells"]
    assert sum(cell["not_applicable_reason"] == "skipped: settled by analytic" for cell in cells) == 4


@pytest.mark.slow
def test_a_shared_folder_is_merged_in_place_and_makes_each_control_once(
    harness: Command, small: Small, content: Callable[[Path], Any]
) -> None:
    for index in (1, 2, 3):
        assert harness(*small, "--shard", f"{index}/3", "--out", "shared").code == 0
    made = {path: path.stat().st_mtime_ns for path in Path("shared/cells").iterdir()}
    assert harness(*small, "--shard", "2/3", "--out", "shared").code == 0
    assert {path: path.stat().st_mtime_ns for path in Path("shared/cells").iterdir()} == made
    assert harness("merge", "shared", "--out", "shared").code == 0
    assert harness(*small, "--out", "one").code == 0
    assert content(Path("shared")) == content(Path("one"))


@pytest.fixture(scope="module")
def made(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shards")
    for index in (1, 2):
        assert run([*small, "--shard", f"{index}/2", "--out", str(place / f"part{index}")]) == 0
    return place


@pytest.fixture
def shards(harness: Command, made: Path) -> tuple[Path, Path]:
    """Two shards of a run, a folder each."""
    shutil.copytree(made, ".", dirs_exist_ok=True)
    return Path("part1"), Path("part2")


def lose_a_shard(first: Path, second: Path) -> None:
    shutil.rmtree(second)


def lose_a_cell(first: Path, second: Path) -> None:
    planned = json.loads((second / "shards" / "2-of-2.json").read_text())["cells"]
    key = next(cell["key"] for cell in planned if cell["shard"] == 2)
    (second / "cells" / f"{key}.json").write_text("{")


def lose_a_control(first: Path, second: Path) -> None:
    for place in (first, second):
        for path in (place / "cells").iterdir():
            if json.loads(path.read_text())["settings"]["control"]:
                path.unlink()


def of_another(what: str, value: Any) -> Callable[[Path, Path], None]:
    def change(first: Path, second: Path) -> None:
        path = second / "shards" / "2-of-2.json"
        plan = json.loads(path.read_text())
        plan["environment" if what in plan["environment"] else what] |= {what: value}
        path.write_text(json.dumps(plan))

    return change


def damage_a_plan(first: Path, second: Path) -> None:
    (second / "shards" / "2-of-2.json").write_text("[]")


def plan_nothing(first: Path, second: Path) -> None:
    for path in (first / "shards" / "1-of-2.json", second / "shards" / "2-of-2.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": []}))


def make_a_cell_twice(first: Path, second: Path, times: float = 1.00001) -> None:
    path = next(one for one in (first / "cells").iterdir() if json.loads(one.read_text())["victims"])
    cell = json.loads(path.read_text())
    cell["victims"][0]["loss"] *= times
    (second / "cells" / path.name).write_text(json.dumps(cell))


def edit_a_cell(change: Callable[[Any], object]) -> Callable[[Path, Path], None]:
    """Its own file, victims beside it, of a defense with noise."""

    def edited(first: Path, second: Path) -> None:
        for path in (path for place in (first, second) for path in (place / "cells").iterdir()):
            cell = json.loads(path.read_text())
            if cell["cell"]["defense"] == "fed_cdp" and cell["cell"]["role"] == "cell":
                change(cell["cell"])
                path.write_text(json.dumps(cell))

    return edited


def swap_fails(cell: Any) -> None:
    next(one for one in cell["controls"] if one["name"] == "swap")["held"] = False


FAULTS = {
    "a ceiling edited": (edit_a_cell(lambda cell: cell["bound"]["events"][0].update(ceiling=0.9)), "was changed"),
    "its p-value edited": (edit_a_cell(lambda cell: cell["bound"]["events"][0].update(p_value=1e-9)), "was changed"),
    "label inference edited": (edit_a_cell(lambda cell: cell["label"].update(p_value=0.01)), "was changed"),
    "a control edited": (edit_a_cell(swap_fails), "was changed: controls"),
    "a shard missing": (lose_a_shard, "shard 2/2 is missing; make it with: harness evaluate"),
    "a cell damaged": (lose_a_cell, "shard 2/2 lacks 1 of its"),
    "a control lost": (lose_a_control, "control"),
    "other versions": (of_another("versions", {"harness": "9"}), "the versions of shard"),
    "other threads": (of_another("threads", 7), "the threads (give all --threads) of shard"),
    "a plan damaged": (damage_a_plan, "is no plan of a shard"),
    "a plan of nothing": (plan_nothing, "is no plan of a shard"),
    "a cell made twice, with other numbers": (make_a_cell_twice, "has other numbers in 'part2' than in 'part1'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_merged(harness: Command, shards: tuple[Path, Path], name: str) -> None:
    change, words = FAULTS[name]
    change(*shards)
    done = harness("merge", "part1", "part2", "--out", "all")
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1
    assert not Path("all/results.json").exists()


def test_a_cell_made_twice_may_differ_in_its_last_digits(harness: Command, shards: tuple[Path, Path]) -> None:
    """As on another machine; the first one counts."""
    make_a_cell_twice(*shards, times=1 + 1e-8)
    assert harness("merge", "part1", "part2", "--out", "all").code == 0
    for path in (shards[0] / "cells").iterdir():
        kept = (Path("all/cells") / path.name).read_text()
        assert json.loads(kept)["victims"] == json.loads(path.read_text())["victims"]


@pytest.mark.slow
def test_shards_of_other_commands_are_not_merged(harness: Command, small: Small) -> None:
    assert harness(*small, "--shard", "1/2", "--out", "part").code == 0
    assert harness(*small, "--victims", "3", "--shard", "2/2", "--out", "part").code == 0
    done = harness("merge", "part", "--out", "all")
    assert done.code == 2 and "the cells of shard 2/2" in done.err


@pytest.mark.slow
def test_how_a_shard_is_printed_or_resumed_does_not_matter(harness: Command, small: Small) -> None:
    assert harness(*small, "--shard", "1/2", "--out", "part").code == 0
    assert harness(*small, "--json", "--shard=2/2", "--out", "part", "--resume", "--data-root", ".").code == 0
    assert harness("merge", "part", "--out", "all").code == 0
    assert "--json" not in json.loads(Path("part/shards/2-of-2.json").read_text())["command"]


def test_nothing_to_merge(harness: Command) -> None:
    Path("empty").mkdir()
    done = harness("merge", "empty", "--out", "all")
    assert done.code == 2 and "no shard was made in empty" in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shard", "3/2"), "there is no shard 3/2; shards of 2 are 1/2 to 2/2"),
        (("--shard", "1/2", "--jobs", "2"), "--shard and --jobs were both given"),
        (("--jobs", "0"), "--jobs must be 1 to"),
        (("--threads", "0"), "--threads must be 1 to"),
    ],
)
def test_wrong_options(harness: Command, small: Small, options: Small, words: str) -> None:
    done = harness(*small, *options)
    assert done.code == 2 and words in done.err
