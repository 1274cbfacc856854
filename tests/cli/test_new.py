"""``harness new`` writes packages whose tests pass, over nothing that stands there."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.cli import run


@pytest.mark.parametrize("kind", ["defense", "attack"])
@pytest.mark.slow
def test_the_written_test_passes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", kind, "adam", "--out", str(tmp_path), "--json"]) == 0
    written = [Path(path) for path in json.loads(capsys.readouterr().out)["files"]]
    assert {path.name for path in written} == {"pyproject.toml", "adam.py", "test_adam.py"}
    project = tomllib.loads((tmp_path / "adam" / "pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {f"harness.{kind}s": {"adam": "adam"}}
    # Laid out so that an editable installation puts its folder on the path.
    assert project["tool"]["setuptools"] == {"py-modules": ["adam"], "package-dir": {"": "."}}
    # As in a checkout of something else, whose settings are not this package's.
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--of-another-plugin'\n")
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path / "adam")]
    done = subprocess.run(
        pytest_run, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_what_stands_there_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "my_defense" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert run(["new", "defense", "my_defense", "--out", str(tmp_path)]) == 2
    assert "is left as it is" in capsys.readouterr().err
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"] and mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("attack", "my-attack", "no name for a Python module"),
        ("attack", "1st", "no name for a Python module"),
        ("attack", "_1", "no name for a Python module"),
        ("attack", "été", "no name for a Python module"),
        ("attack", "../up", "no name for a Python module"),
        ("attack", "", "no name for a Python module"),
        ("defense", "class", "no name for a Python module"),
        ("attack", "dlg", "attack 'dlg' exists already"),
        ("attack", "gradinv", "attack 'gradinv' exists already"),
        ("attack", "DLG", "attack 'dlg' exists already"),
        ("attack", "setup", "pytest or setuptools"),
        ("attack", "conftest", "pytest or setuptools"),
        ("attack", "test_mine", "pytest or setuptools"),
        ("attack", "mine_test", "pytest or setuptools"),
        ("defense", "Torch", "Python module 'torch' exists already"),
        ("defense", "torch", "Python module 'torch' exists already"),
        ("dataset", "mine", "'dataset' is not one of"),
    ],
)
def test_an_unfit_name_is_one_line_and_exit_code_2(
    kind: str, name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["new", kind, name, "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line and not list(tmp_path.iterdir())
