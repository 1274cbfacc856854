"""The README is short, and its two commands are the project's; the pages it leads to name what there is."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.attacks import ATTACKS
from harness.datasets import DATASETS
from harness.defenses import DEFENSES
from harness.federation.taps import Tap
from harness.models import MODELS
from harness.presets import PRESETS

ROOT = Path(__file__).parents[2]
README, CONTRIBUTING, CONCEPTS, NAMES_PAGE, API = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "docs/concepts.md", "docs/names.md", "docs/api.md")
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

RUN = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/harness evaluate --defense fed_acdp --attack cpl"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && PYTHONSAFEPATH=1 .venv/bin/python -m pytest"


def test_it_is_a_screen_and_a_half_with_a_picture_that_is_described() -> None:
    assert len(README.splitlines()) <= 100
    ((text, picture),) = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", README)
    assert len(text) > 50 and (ROOT / picture).is_file() and (ROOT / picture).with_suffix(".py").is_file()


def test_the_two_commands_stand_alone_on_their_lines() -> None:
    assert [line for line in README.splitlines() if line.startswith("python3")] == [RUN, TEST]


def test_they_fit_the_project() -> None:
    assert PROJECT["project"]["scripts"] == {"harness": "harness.cli:main"}
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"pytest", "ruff", "gradient-leakage-harness[docs]"} <= {need.partition(">")[0] for need in extras["dev"]}
    assert {"sphinx", "myst-parser"} <= {need.partition(">")[0] for need in extras["docs"]}
    marks = {mark.partition(":")[0] for mark in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"-m pytest -m (\w+)$", CONTRIBUTING, re.MULTILINE)) == marks - {"second_device"}
    assert ".ci/second_device" in CONTRIBUTING  # which is how that one is run


def test_the_automatic_check_runs_the_readmes_test_command() -> None:
    """Step by step, in an environment of its own."""
    plain = CI.replace('"', "").replace("$venv", ".venv").replace(" --quiet", "")
    steps = TEST.split(" && ")
    assert [line for line in plain.splitlines() if line in steps] == steps
    assert CI.rstrip().splitlines()[-1].endswith("-m pytest")


def test_the_contributors_command_is_the_same() -> None:
    assert TEST in CONTRIBUTING.splitlines()


@pytest.mark.parametrize("name", [*ATTACKS, *DEFENSES, *DATASETS, *MODELS, *PRESETS])
def test_every_name_that_can_be_chosen_has_its_place(name: str) -> None:
    assert f"`{name}`" in NAMES_PAGE


@pytest.mark.parametrize("tap", list(Tap))
def test_every_tap_is_explained(tap: str) -> None:
    assert f"`{tap}`" in CONCEPTS


def test_the_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10
    given = {"net": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "images": images, "labels": labels}
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", API, re.DOTALL | re.MULTILINE)):
        (tmp_path / "example.py").write_text(code)
        made = runpy.run_path(str(tmp_path / "example.py"), given)
        assert "run" in made, number
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("An observation, not a promise") and printed[2].startswith("verdict")
    assert any("fed_cdp" in line for line in printed)
    assert (tmp_path / "report.html").exists() and len(made["table"]) == 1
