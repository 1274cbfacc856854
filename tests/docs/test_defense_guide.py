"""The way from an empty file to a verdict: the file it prints is the one that is written, and its commands run."""

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.defenses import DEFENSES
from harness.results import read_results

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-defense.md").read_text(encoding="utf-8")
((COMMANDS,), (FILE,)) = (
    re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) for language in ("console", "python")
)
NEW, INSTALL, TEST, EVALUATE, REPORT = (shlex.split(line) for line in COMMANDS.splitlines())
TINY = ("--dataset", "digits", "--model", "mlp", "--victims", "4", "--no-pictures")


def test_it_is_read_in_minutes() -> None:
    """At 230 words a minute, code and all."""
    assert len(PAGE.split()) < 3 * 230


def test_its_file_is_the_one_that_is_written(harness: Callable[..., Any], tmp_path: Path) -> None:
    assert harness(*NEW[1:]).code == 0
    assert (tmp_path / "my_defense" / "my_defense.py").read_text() == FILE


@pytest.mark.slow
def test_its_commands_lead_from_the_file_to_the_report(
    harness: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``pip`` would make of it is made without: an entry point on the path. ``pytest`` runs elsewhere."""
    folder = tmp_path / "my_defense"
    assert harness(*NEW[1:]).code == 0
    assert (shlex.join(INSTALL), shlex.join(TEST)) == ("pip install pytest -e my_defense", "pytest my_defense")
    build = "from setuptools.build_meta import prepare_metadata_for_build_wheel as build; build('.')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
    monkeypatch.syspath_prepend(folder)
    for name, empty in (("_entries", dict(DEFENSES._entries)), ("_plugins_loaded", False)):
        monkeypatch.setattr(DEFENSES, name, empty)
    importlib.invalidate_caches()
    assert harness(*EVALUATE[1:], *TINY).code == 0
    cells = [cell for cell in read_results(tmp_path / EVALUATE[-1]).cells if cell.role == "cell"]
    assert {cell.tier for cell in cells} == {"plain", "informed"} and "gaussian" in {cell.noise for cell in cells}
    assert harness(*REPORT[1:]).code == 0 and (tmp_path / "report.html").is_file()
    sys.modules.pop("my_defense", None)
