"""The board of runs: its files, what is left out and why, and runs that are none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.board import read_card
from harness.results.card import Card

Harness = Callable[..., Any]


def test_every_row_has_a_page_and_a_card(harness: Harness, runs: list[Path], card: Card, tmp_path: Path) -> None:
    finished = harness("site", *map(str, runs), str(runs[0]), "--out", "public")
    assert (finished.code, finished.out) == (0, "") and finished.err == "public/index.html: 1 row\n"
    files = sorted(str(path.relative_to("public")) for path in Path("public").rglob("*.*"))
    assert files == [f"cards/{card.name}.json", "index.html", f"rows/{card.name}.html"]
    assert read_card(Path("public/cards") / f"{card.name}.json") == card
    page = Path("public/index.html").read_text()
    assert f'href="rows/{card.name}.html"' in page and "fed_cdp sigma=1" in page
    assert card.hash in Path(f"public/rows/{card.name}.html").read_text()


def test_a_page_of_somebody_elses_is_not_written_over(
    harness: Harness, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path("public/index.html")
    page.parent.mkdir()
    for content in ("precious", "<!doctype html>\n<html lang='en'>"):
        page.write_text(content)
        with monkeypatch.context() as patch:
            patch.setattr("harness.cli.site.collect", lambda _: pytest.fail("computed before it looked"))
            finished = harness("site", str(runs[0]))
        assert (finished.code, finished.err.count("\n"), page.read_text()) == (2, 1, content)
        assert "it is a file of yours); choose another place with --out" in finished.err
    page.unlink()
    assert [harness("site", str(runs[0])).code for _ in range(2)] == [0, 0]


def spoiled(run: Path, **changes: Any) -> Path:
    folder = Path(shutil.copytree(run, "spoiled"))
    document = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps(document | changes))
    return folder


def test_an_invalid_run_has_no_verdict(harness: Harness, runs: list[Path]) -> None:
    folder = spoiled(runs[0], valid=False, valid_reason="negative control swap failed")
    assert harness("site", str(folder), "--out", "public").code == 0
    page = Path("public/index.html").read_text()
    assert (
        "1 of 1 row: of runs that must not be used" in page
        and "resilient</td>" not in page
        and "LEAKS</td>" not in page
    )
    (file,) = Path("public/cards").glob("*.json")
    assert json.loads(file.read_text())["status"] == "unreliable"
    finished = harness("verify", str(file))
    assert finished.code == 2 and "negative control swap failed" in finished.err


def test_rows_without_their_cells_are_left_out_with_the_reason(harness: Harness, runs: list[Path]) -> None:
    folder = spoiled(runs[0])
    shutil.rmtree(folder / "cells")
    finished = harness("site", str(folder), str(runs[0]), "--out", "public")
    assert finished.code == 0 and "is missing or damaged" in finished.err
    assert "is missing or damaged" in Path("public/index.html").read_text()
    alone = harness("site", str(folder), "--out", "other")
    assert (alone.code, alone.err.count("\n")) == (2, 1) and "no row for a board" in alone.err


def test_what_is_no_run_is_told_in_one_line(harness: Harness, runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    stopped = spoiled(runs[0])
    (stopped / "results.json").unlink()
    for folder, said in (("empty", "results.json"), ("absent", "does not exist"), (stopped, "the run is unfinished")):
        finished = harness("site", str(folder))
        assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1) and said in finished.err


def test_a_place_where_no_attack_can_run_has_no_card(harness: Harness) -> None:
    """Nobody could verify one."""
    settings = "--defense none --dataset digits --model logistic --surface 2 --victims 4 --attack analytic"
    command = ("evaluate", *settings.split(), "--batch-size", "1,2", "--out", "run", "--no-pictures")
    assert harness(*command).code == 0
    finished = harness("site", "run", "--out", "public")
    assert finished.code == 0 and "reads one example per observation, not 2" in finished.err
    (card,) = Path("public/cards").glob("*.json")
    assert json.loads(card.read_text())["row"]["batch_size"] == 1
    assert "reads one example per observation, not 2" in Path("public/index.html").read_text()
