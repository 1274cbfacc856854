"""Runs from anywhere: what is readable is used, the rest is named, and nothing outside the folder is touched."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from harness.base.errors import UsageError
from harness.reports.html import make_page, read_runs, with_trainings
from harness.results import RunFolder, cell_key
from harness.scoring.summarise import summarise


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def write(folder: Path, document: object) -> None:
    (folder / "results.json").write_text(json.dumps(document))


@pytest.fixture
def run(tmp_path: Path, a_cell: Callable, a_run: Callable) -> Path:
    return a_run(tmp_path / "eval", [a_cell("none"), a_cell("fed_cdp", verdict="resilient")], pictures=False)


def left_out(*folders: Path) -> str:
    return " | ".join(reason for run in read_runs(folders) for reason in run.left_out)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"), (b'{"schema_version": 1, "cel', "not complete JSON"), (b"[1, 2]", "of another kind"),
        (b'{"a": 1}', "not a result of harness evaluate"), (b"\x80\x04\x95pickle", "not complete JSON"),
        (b'{"schema_version": 0, "cells": []}', "another result schema"), (b"[" * 100_000, "not complete JSON"),
        (b'{"schema_version": 1, "cells": [], "environment": {}}', "holds no cells"),
        (b'{"schema_version": 1, "cells": [1, null, "x"]}', "3 of 3 cells break"),
    ],
)  # fmt: skip
def test_one_unreadable_run_is_named_beside_a_good_one_and_alone_is_a_mistake(
    tmp_path: Path, run: Path, content: bytes, says: str
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "results.json").write_bytes(content)
    assert says in left_out(run, bad)
    with pytest.raises(UsageError, match="nothing to report") as mistake:
        read_runs([bad])
    assert says in str(mistake.value) and "\n" not in str(mistake.value)


def test_folders_that_are_missing_or_hold_no_run(tmp_path: Path, run: Path) -> None:
    assert "no folder of a run" in left_out(run, tmp_path / "gone")
    assert "neither results.json nor judged.json nor training.json" in left_out(run, tmp_path)
    with pytest.raises(UsageError, match="harness evaluate, judge or train"):
        read_runs([tmp_path / "gone"])


def test_a_broken_cell_leaves_the_others(run: Path) -> None:
    document = results(run)
    document["cells"][1]["verdict"] = "private"
    write(run, document)
    [found] = read_runs([run])
    assert [cell.defense for cell in found.cells] == ["none"]
    assert "1 of 2 cells" in found.left_out[0]


def test_numbers_that_no_run_has_are_refused(run: Path) -> None:
    document = results(run)
    document["cells"][0]["victims"] = 10**400
    document["cells"][1]["defense_args"] = {"sigma": 10**300}
    write(run, document)
    [found] = read_runs([run])
    assert [cell.defense_args for cell in found.cells] == [{"sigma": None}]
    make_page([found])


def test_an_older_document_without_a_summary_is_judged_from_its_cells(run: Path) -> None:
    document = results(run)
    del document["summary"]
    write(run, document)
    [found] = read_runs([run])
    assert found.summary == summarise(found.cells) != []


def test_a_run_killed_before_its_document_is_read_from_its_finished_cells(tmp_path: Path, a_cell: Callable) -> None:
    settings = {"defense": "none"}
    key = cell_key(settings)
    RunFolder(tmp_path / "cut").write_cell(key, settings, a_cell("none", key=key), [])
    (tmp_path / "cut" / "cells" / "deadbeef.json").write_text("{")
    [found] = read_runs([tmp_path / "cut"])
    assert [cell.defense for cell in found.cells] == ["none"] and found.summary
    assert found.settings == {key: settings}
    assert any("deadbeef" in reason for reason in found.left_out)


def test_broken_lines_of_victims_are_counted(run: Path) -> None:
    with (run / "victims.jsonl").open("ab") as stream:
        stream.write(b'{"half\n' + b"\xff\xfe\n" + b"x" * 3_000_000)
    [found] = read_runs([run])
    assert sum(map(len, found.victims.values())) == 24
    assert any("lines of victims.jsonl" in reason for reason in found.left_out)


@pytest.mark.parametrize(("kept", "lost"), [(0, "2 of 2"), (12, "1 of 2"), (24, None)])
def test_victims_that_were_cut_off_are_told(run: Path, kept: int, lost: str | None) -> None:
    lines = (run / "victims.jsonl").read_text().splitlines(keepends=True)
    (run / "victims.jsonl").write_text("".join(lines[:kept]))
    [found] = read_runs([run])
    assert found.left_out == ([f"the victims of {lost} cells, which are not in victims.jsonl"] if lost else [])


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, run: Path, a_cell: Callable, a_run: Callable) -> None:
    other = a_run(tmp_path / "other", [a_cell("none")])
    key = results(run)["cells"][0]["key"]
    (run / "pictures").mkdir()
    [secret] = (other / "pictures").iterdir()
    (run / "pictures" / f"{key}.png").symlink_to(secret)
    (run / "victims.jsonl").unlink()
    (run / "victims.jsonl").symlink_to(other / "victims.jsonl")
    page = make_page(read_runs([run]))
    assert "data:image/webp" not in page and "is a link that leaves the folder" in page


@pytest.mark.parametrize("key", [
    "../../x", "/etc/passwd", "",
    *(pytest.param(key, marks=pytest.mark.slow) for key in ("..", "a/b", "x" * 5000, "\x00")),
])  # fmt: skip
def test_a_key_never_becomes_a_path_out_of_the_folder(run: Path, key: str) -> None:
    document = results(run)
    document["cells"][0]["key"] = key
    write(run, document)
    assert "data:image/webp" not in make_page(read_runs([run]))


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n" + b"\x00" * 50, b"<svg onload='x'/>"])
def test_a_picture_that_is_none_is_named(run: Path, content: bytes) -> None:
    (run / "pictures").mkdir()
    (run / "pictures" / f"{results(run)['cells'][0]['key']}.png").write_bytes(content)
    assert "is not a PNG that can be read" in make_page(read_runs([run]))


def test_a_picture_too_large_to_decode_is_refused(run: Path) -> None:
    # A header alone that claims 100,000 by 100,000 pixels.
    header = bytes.fromhex("89504e470d0a1a0a0000000d49484452000186a0000186a0080000000094ad3c0d")
    (run / "pictures").mkdir()
    (run / "pictures" / f"{results(run)['cells'][0]['key']}.png").write_bytes(header)
    assert "data:image/webp" not in make_page(read_runs([run]))


@pytest.mark.parametrize("size", [(30_000_000, 1), pytest.param((1, 30_000_000), marks=pytest.mark.slow)])
def test_a_picture_too_long_to_show_is_refused(run: Path, size: tuple[int, int]) -> None:
    (run / "pictures").mkdir()
    Image.new("1", size).save(run / "pictures" / f"{results(run)['cells'][0]['key']}.png")
    page = make_page(read_runs([run]))
    assert "data:image/webp" not in page and "has too many pixels" in page


def test_runs_of_one_name_are_told_apart_and_a_folder_given_twice_counts_once(
    tmp_path: Path, a_cell: Callable, a_run: Callable
) -> None:
    folders = [a_run(tmp_path / side / "eval", [a_cell("fed_cdp")], pictures=False) for side in ("a", "b")]
    runs = read_runs([*folders, folders[0] / "results.json"])
    assert [run.name for run in runs] == ["eval (1)", "eval (2)"]
    page = make_page(runs)
    assert "run eval (1)" in page and "run eval (2)" in page


def test_what_a_frontier_trained_is_in_its_report(tmp_path: Path, run: Path, a_training: Callable) -> None:
    for name in ("one", "two", "of an earlier frontier"):
        a_training(run / "trained" / name)
    a_training(tmp_path / "outside")
    named = ["trained/one", "trained/one", "trained/two", "../outside", "trained/lost", None]
    (run / "frontier.json").write_text(json.dumps({"points": [{"training": one} for one in named]}))
    found = with_trainings(read_runs([run]))
    assert [one.folder.name for one in found[1:]] == ["one", "two"]
    assert len({one.name for one in found}) == 3 and all(one.training for one in found[1:])
    assert len(found[0].left_out) == 2 and "outside" in found[0].left_out[0]


def test_a_training_that_is_named_twice_is_one_run(run: Path, a_training: Callable) -> None:
    """By whoever asks for the report and by the frontier, or in other words for one folder."""
    for name in ("trained/one", "trained/two", "."):
        a_training(run / name)
    named = [".", "trained/one", "trained/two", "trained/two/.", "trained/../trained/two", *map(str, range(3_000))]
    (run / "frontier.json").write_text(json.dumps({"points": [{"training": one} for one in named]}))
    found = with_trainings(read_runs([run, run / "trained" / "one"]))
    assert [one.folder.name for one in found] == [run.name, "two", "one"]
    assert found[0].left_out[0] == "1005 trainings of frontier.json beyond the first 2000"
