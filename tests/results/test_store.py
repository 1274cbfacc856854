"""The run folder: a cell is read back only whole, of this schema and of these settings."""

import json
import logging
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.results import CellResult, ResultDocument, RunFolder, VictimRecord, cell_key, claimed, read_results

SETTINGS = {"defense": "fed_cdp", "sigma": 6.0, "seeds": (0, 1), "clip": math.inf}
KEY = cell_key(SETTINGS)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "first")


def a_cell(**changes: object) -> CellResult:
    facts = {
        "dataset": "d",
        "model": "m",
        "defense": "fed_cdp",
        "attack": "cpl",
        "tap": "T2.step",
        "seeds": [0],
        "key": KEY,
    }
    return CellResult(**(facts | {"victims": 1} | changes))


def a_victim(**changes: object) -> VictimRecord:
    facts = {"cell": KEY, "dataset": "d", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step", "seed": 0}
    return VictimRecord(**(facts | {"victim": 0, "outcome": "failure"} | changes))


def store(folder: RunFolder) -> Path:
    folder.write_cell(KEY, SETTINGS, a_cell(), [a_victim()])
    return folder.path / "cells" / f"{KEY}.json"


def test_a_key_depends_on_every_setting_but_not_on_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(KEY) == 20 and set(KEY) <= set("0123456789abcdef")
    assert cell_key(dict(reversed(SETTINGS.items()))) == KEY
    assert cell_key(SETTINGS | {"seeds": [0, 1]}) == KEY
    changed = [{"sigma": 6.1}, {"clip": None}, {"clip": -math.inf}, {"extra": None}, {"seeds": [1, 0]}]
    assert len({KEY, *(cell_key(SETTINGS | change) for change in changed)}) == 1 + len(changed)
    monkeypatch.setattr("harness.results.store.SCHEMA_VERSION", 2)
    assert cell_key(SETTINGS) != KEY


def test_a_finished_cell_is_found_again(folder: RunFolder) -> None:
    store(folder)
    stored = folder.read_cell(KEY, SETTINGS)
    assert stored is not None
    assert (stored.cell, stored.victims) == (a_cell(), [a_victim()])


@pytest.mark.parametrize("linked", [False, True], ids=["a file", "a link"])
def test_what_stands_there_is_an_earlier_runs_whatever_time_it_claims(
    folder: RunFolder, tmp_path: Path, linked: bool
) -> None:
    path, to_come = store(folder), time.time() + 10**6
    if linked:
        path = path.rename(tmp_path / "elsewhere")
        (folder.path / "cells" / f"{KEY}.json").symlink_to(path)
    os.utime(path, (to_come, to_come))
    anew = folder.anew()
    assert folder.read_cell(KEY, SETTINGS) is not None and anew.read_cell(KEY, SETTINGS) is None
    if not linked:
        store(anew)
        assert anew.read_cell(KEY, SETTINGS) is not None


def test_an_absent_cell_is_none_without_a_warning(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    assert folder.read_cell(KEY, SETTINGS) is None
    assert not caplog.records


def test_a_cell_of_other_settings_is_not_trusted(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    store(folder)
    assert folder.read_cell(KEY, SETTINGS | {"sigma": 5.0}) is None
    assert "other settings" in caplog.text


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_cell_is_not_trusted(folder: RunFolder, caplog: pytest.LogCaptureFixture, share: float) -> None:
    path = store(folder)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert folder.read_cell(KEY, SETTINGS) is None
    assert "complete JSON" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"[]", b"null", b'{"schema_version": 1}', b"[" * 100_000, b"\xff\xfe", b'"' + b"9" * 9_000 + b'"', b"9" * 9_000],
    ids=range(7),
)
def test_foreign_content_is_not_trusted(folder: RunFolder, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    store(folder).write_bytes(content)
    assert folder.read_cell(KEY, SETTINGS) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_cell_of_another_schema_is_not_trusted(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    path = store(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))
    assert folder.read_cell(KEY, SETTINGS) is None
    assert "another result schema" in caplog.text


def test_a_crash_before_the_rename_leaves_the_old_cell_and_no_litter(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store(folder)

    def crash(source: object, target: object) -> None:
        assert Path(source).read_bytes() != path.read_bytes()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        folder.write_cell(KEY, SETTINGS, a_cell(verdict="leaks"), [])
    stored = folder.read_cell(KEY, SETTINGS)
    assert stored is not None and stored.cell.verdict == "inconclusive"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["../../../escape", "/etc/passwd", "ab" * 40, "ABCDEF0123", "deadbeef\n", "", "<script>"]
)
def test_only_keys_become_file_names(folder: RunFolder, name: str) -> None:
    for use in (
        lambda: folder.write_cell(name, SETTINGS, a_cell(), []),
        lambda: folder.read_cell(name, SETTINGS),
        lambda: folder.write_arrays(name, {}),
        lambda: folder.read_arrays(name),
        lambda: folder.picture(name),
    ):
        with pytest.raises(ValueError, match="is not a key"):
            use()
    assert not folder.path.exists()


def test_hostile_names_stay_data(folder: RunFolder) -> None:
    settings = {"defense": "../../x", "attack": "<script>alert(1)</script>"}
    key = cell_key(settings)
    cell = a_cell(defense="../../x", attack="<script>alert(1)</script>", dataset="[bold]", key=key)
    folder.write_cell(key, settings, cell, [])
    stored = folder.read_cell(key, settings)
    assert stored is not None and stored.cell == cell
    assert [path.name for path in folder.path.rglob("*.json")] == [f"{key}.json"]


def test_arrays_survive_and_damage_reads_as_absent(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    images = np.random.default_rng(0).random((2, 1, 4, 4), dtype=np.float32)
    assert folder.read_arrays(KEY) is None and not caplog.records
    folder.write_arrays(KEY, {"images": images, "labels": np.arange(2)})
    arrays = folder.read_arrays(KEY)
    assert arrays is not None and list(arrays) == ["images", "labels"]
    np.testing.assert_array_equal(arrays["images"], images)
    path = folder.path / "reconstructions" / f"{KEY}.npz"
    path.write_bytes(path.read_bytes()[:-40])
    assert folder.read_arrays(KEY) is None and "damaged" in caplog.text


def test_pickled_arrays_are_neither_written_nor_read(folder: RunFolder) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    with pytest.raises(ValueError, match="Object arrays"):
        folder.write_arrays(KEY, {"objects": objects})
    path = folder.path / "reconstructions" / f"{KEY}.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, objects=objects)
    assert folder.read_arrays(KEY) is None


def test_a_run_ends_with_a_document_and_a_line_per_victim(folder: RunFolder) -> None:
    document = ResultDocument(environment={"git": None}, cells=[a_cell()])
    folder.write_results(document, [a_victim(victim=0), a_victim(victim=1, rmse=math.nan)])
    lines = (folder.path / "victims.jsonl").read_text().splitlines()
    assert [json.loads(line)["victim"] for line in lines] == [0, 1]
    assert read_results(folder.path) == read_results(folder.path / "results.json") == document


def test_a_folder_that_cannot_be_written_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = RunFolder(tmp_path / "file" / "runs")
    with pytest.raises(UsageError, match="--out"):
        claimed(folder.path).__enter__()
    with pytest.raises(UsageError, match="--out"):
        folder.write_cell(KEY, SETTINGS, a_cell(), [])


def test_a_cell_is_found_by_its_key_alone_only_where_the_key_is_that_of_its_settings(folder: RunFolder) -> None:
    path = store(folder)
    found = folder.find_cell(KEY)
    assert found is not None and found.cell == a_cell()
    other = "ab" * 10
    path.rename(path.with_name(f"{other}.json"))
    assert folder.find_cell(other) is None and folder.find_cell(KEY) is None
