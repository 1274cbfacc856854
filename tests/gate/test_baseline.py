"""The baseline file: what is written is what is read, and nothing else is read."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UsageError
from harness.gate import GateCell, as_baseline, check, read_baseline, read_runs, write_baseline
from harness.gate.cells import merged
from harness.results import RunFolder

Made = Callable[..., GateCell]
VERSIONS = {"harness": "0.1.0", "torch": "2.11.0", "lpips": None}


def test_round_trip(cell: Made, tmp_path: Path) -> None:
    cells = [cell(0.5), cell(0.0, tap="T1.out"), cell(1.0, defense="none", **{"defense.epsilon": None})]
    path = tmp_path / "deep" / "baseline.json"
    write_baseline(path, as_baseline(cells, VERSIONS))
    read = read_baseline(path)
    assert read.versions == VERSIONS
    assert list(read.cells) == list(as_baseline(cells, VERSIONS).cells)
    again = tmp_path / "again.json"
    write_baseline(again, as_baseline(list(reversed(read.cells)), VERSIONS))
    assert again.read_bytes() == path.read_bytes()
    assert len(path.read_text().splitlines()) == len(cells) + 2


def test_a_run_equals_the_baseline_made_of_it(small_run: Path, tmp_path: Path) -> None:
    cells, versions, problems = read_runs([small_run])
    assert problems == []
    assert sorted(c.title for c in cells) == [
        "noise amount=0.02 applies_to=gradient / cpl / T2.step / digits",
        "noise amount=0.02 applies_to=gradient without noise / cpl / T2.step / digits",
        "none / cpl / T2.step / digits",
    ]
    write_baseline(tmp_path / "b.json", as_baseline(cells, versions))
    report = check(read_baseline(tmp_path / "b.json"), cells, versions)
    assert all(finding.movement.effect == 0 and finding.p == 1 for finding in report.findings)


def test_the_same_victims_under_several_seeds_are_averaged(small_run: Path, tmp_path: Path) -> None:
    """One run twice, as two nights of the same seed: the same victims, and no more of them."""
    once, twice = read_runs([small_run])[0], read_runs([small_run, small_run])[0]
    assert once == twice


def test_the_same_number_in_another_run_is_another_victim(small_run: Path) -> None:
    """Victim 5 of seed 1 is not drawn alike where seed 0 goes before it: all of both runs are counted."""
    stored = [
        one for path in (small_run / "cells").glob("*.json") if (one := RunFolder(small_run).find_cell(path.stem))
    ]
    one = next(cell for cell in stored if cell.victims)
    moved = [
        record.model_copy(update={"dataset_index": (record.dataset_index or 0) + 10_000}) for record in one.victims
    ]
    (first,), (both,) = merged([one]), merged([one, one.model_copy(update={"victims": moved})])
    assert len(both.victims) == 2 * len(first.victims)
    assert {name: both.victims[name] for name in first.victims} == first.victims


def test_the_same_place_in_other_data_of_ones_own_is_another_victim(small_run: Path) -> None:
    """An example of a file that was edited since is not paired with what stood at its place before."""
    stored = [
        one for path in (small_run / "cells").glob("*.json") if (one := RunFolder(small_run).find_cell(path.stem))
    ]
    one = next(cell for cell in stored if cell.victims)
    before, after = (one.model_copy(update={"settings": one.settings | {"dataset_file": mark * 64}}) for mark in "ab")
    (first,), (second,), (again,) = merged([before]), merged([after]), merged([before, before])
    assert first.settings == second.settings and first.victims.keys() == again.victims.keys()
    assert len(first.victims) == len(second.victims) and not first.victims.keys() & second.victims.keys()


WRONG = {
    "half": (lambda text: text[: len(text) // 2], "not complete JSON"),
    "empty": (lambda text: "", "not complete JSON"),
    "a list": (lambda text: "[]", "not a baseline"),
    "another tool's": (lambda text: '{"cells": []}', "not a baseline"),
    "another format": (lambda text: text.replace('"format":1', '"format":2'), "another format"),
    "another schema": (lambda text: text.replace('"schema_version":1', '"schema_version":0'), "another schema_version"),
    "one number short": (lambda text: text.replace('"ranks":[', '"ranks":[0.5,', 1), "differ in number"),
    "a rank of two": (lambda text: text.replace('"ranks":[', '"ranks":[2,', 1), "less than or equal to 1"),
    "no number": (lambda text: text.replace('"rmses":[', '"rmses":[NaN,', 1), "damaged"),
    "unknown field": (lambda text: text.replace('"victims":', '"<script>":1,"victims":', 1), "damaged"),
    "a scale in words": (lambda text: re.sub(r'("noise_scale":)[0-9.]+', r'\1"x"', text), "noise_scale is no number"),
    "a word": (lambda text: text.replace('"successes":[', '"successes":["x",', 1), "damaged"),
}


@pytest.mark.parametrize(("damage", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_told_apart(cell: Made, tmp_path: Path, damage: Callable[[str], str], said: str) -> None:
    path = tmp_path / "b.json"
    write_baseline(path, as_baseline([cell()], VERSIONS))
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=said) as error:
        read_baseline(path)
    assert "\n" not in str(error.value) and "--update" in str(error.value)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(UsageError, match="not complete JSON"):
        read_baseline(path)
    assert not (tmp_path / "owned").exists()


def test_an_unwritable_place_is_a_mistake(cell: Made, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_baseline(tmp_path / "file" / "b.json", as_baseline([cell()], VERSIONS))


def test_compact(cell: Made, tmp_path: Path) -> None:
    """A nightly of 200 cells with 32 victims stays far below what a repository minds."""
    write_baseline(tmp_path / "b.json", as_baseline([cell(tap=f"T{place}") for place in range(200)], VERSIONS))
    assert (tmp_path / "b.json").stat().st_size < 500_000
    assert json.loads((tmp_path / "b.json").read_text())["common"]["dataset"] == "digits"
