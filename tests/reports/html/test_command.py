"""``harness report`` from the command line, and its templates in a plain install."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import run

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 8_000_000


@pytest.mark.parametrize(
    ("form", "start"),
    [("html", "<!DOCTYPE html>"), ("md", "## "), ("latex", "% needs"), ("json", '{\n "kind": "report"')],
)
def test_every_format_is_one_file(grid: list[Path], tmp_path: Path, form: str, start: str) -> None:
    out = tmp_path / "out"
    assert run(["report", *map(str, grid), "--format", form, "--out", str(out)]) == 0
    assert out.read_text().startswith(start)


@pytest.mark.parametrize(("name", "start"), [("t.md", "## "), ("t.TEX", "% needs"), ("page", "<!DOCTYPE html>")])
def test_the_ending_of_the_file_tells_the_format(grid: list[Path], tmp_path: Path, name: str, start: str) -> None:
    assert run(["report", str(grid[0]), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text().startswith(start)


def test_csv_is_a_file_per_table(grid: list[Path], tmp_path: Path) -> None:
    assert run(["report", *map(str, grid), "--format", "csv", "--out", str(tmp_path / "tables")]) == 0
    names = {file.name for file in (tmp_path / "tables").iterdir()}
    assert {"resilience.csv", "paper-1.csv", "cells.csv", "privacy.csv"} <= names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nothing to report"), ([], "Missing argument"), (["GRID", "--format", "pdf"], "choose html"),
        (["GRID", "--out", "."], "is a folder"), (["GRID", "--out", "x.csv"], "name a folder, with --format csv"),
        (["GRID", "--out", "x.pdf"], "ends in none of .html, .md, .tex, .json"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    grid: list[Path], capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    given = [str(grid[0]) if argument == "GRID" else argument for argument in arguments]
    assert run(["report", *given]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_earlier_runs_are_in_the_trend_only(grid: list[Path], tmp_path: Path) -> None:
    night = tmp_path / "monday"
    night.mkdir()
    (night / "results.json").write_bytes((grid[0] / "results.json").read_bytes())
    for name, more in (("alone", []), ("trend", ["--earlier", str(night)])):
        assert run(["report", str(grid[0]), *more, "--format", "json", "--out", str(tmp_path / name)]) == 0
    alone, trend = (json.loads((tmp_path / name).read_text())["tables"] for name in ("alone", "trend"))
    (added,) = [table for table in trend if table not in alone]
    assert added["name"] == "trend" and "monday" in added["columns"]


def test_what_is_left_out_is_said(grid: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "training.json").write_text("{")
    out = tmp_path / "report.html"
    assert run(["report", str(grid[0]), str(tmp_path / "bad"), "--out", str(out)]) == 0
    assert "left out: bad: training.json is not complete JSON" in capsys.readouterr().err
    assert "training.json is not complete JSON" in out.read_text()


@pytest.mark.slow
def test_a_full_night_is_small(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    cells = [
        a_cell(f"defense{number}", surface, attack=attack, dataset=dataset, observation_id=f"{number}{attack}{surface}")
        for dataset in ("mnist-sample", "cifar10-sample")
        for number in range(10)
        for surface in (2, 1, 0)
        for attack in ("cpl", "dlg", "idlg", "analytic", "inverting_gradients")
    ]
    folder = a_run(tmp_path / "night", cells)
    assert run(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").stat().st_size < LIMIT


def test_a_plain_install_carries_the_templates(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    # A copy, so that nothing is built inside the checkout.
    for name in ("pyproject.toml", "README.md", "LICENSE", "harness", "attacks", "defenses", "datasets", "reports"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    build = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for file in (ROOT / "reports" / "html" / "templates").iterdir():
        assert f"harness/reports/html/templates/{file.name}" in names
    assert "harness/reports/html/page.py" in names
