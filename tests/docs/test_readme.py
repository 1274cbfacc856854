"""The README's commands, names and code are those of the project."""

import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import harness.cli.evaluate as command
from harness.attacks import ATTACKS
from harness.cli import run
from harness.cli.app import app
from harness.datasets import DATASETS
from harness.defenses import DEFENSES
from harness.federation.taps import Tap
from harness.models import MODELS
from harness.presets import PRESETS
from harness.results import ResultDocument

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

RUN = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/harness evaluate --defense fed_acdp --attack cpl"
TEST = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && PYTHONSAFEPATH=1 .venv/bin/python -m pytest"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


CONSOLE = [line.strip() for block in blocks(README, "console") for line in block.splitlines() if line.strip()]
COMMANDS = [line.partition("#")[0].strip() for line in CONSOLE if line.startswith("harness ")]
GUIDE_COMMANDS = [
    line.strip()
    for guide in sorted((ROOT / "docs").glob("*.md"))
    for block in blocks(guide.read_text(encoding="utf-8"), "console")
    for line in block.splitlines()
]
EVALUATIONS = [RUN[RUN.index("harness") :], *(line for line in COMMANDS if line.startswith("harness evaluate"))]


def test_the_two_commands_stand_alone_on_their_lines() -> None:
    assert [line for line in CONSOLE if line.startswith("python3")] == [RUN, TEST]


def test_they_fit_the_project() -> None:
    assert PROJECT["project"]["scripts"] == {"harness": "harness.cli:main"}
    assert {"pytest", "ruff"} <= {need.partition(">")[0] for need in PROJECT["project"]["optional-dependencies"]["dev"]}
    marks = {mark.partition(":")[0] for mark in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    extra = [line.rpartition(" ")[2] for line in CONSOLE if " -m pytest -m " in line]
    assert set(extra) == marks


def test_the_automatic_check_runs_the_readmes_test_command() -> None:
    """Step by step, in an environment of its own."""
    plain = CI.replace('"', "").replace("$venv", ".venv").replace(" --quiet", "")
    steps = TEST.split(" && ")
    assert [line for line in plain.splitlines() if line in steps] == steps
    assert CI.rstrip().splitlines()[-1].endswith("-m pytest")


def test_the_contributors_command_is_the_same() -> None:
    assert TEST in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", [*COMMANDS, *GUIDE_COMMANDS])
def test_every_command_line_is_understood(line: str) -> None:
    """Parsed with all its options and their types, not executed."""
    _, *arguments = shlex.split(line)
    parser: Any = typer.main.get_command(app)
    context = parser.make_context("harness", list(arguments))
    while hasattr(parser, "resolve_command"):
        name, parser, arguments = parser.resolve_command(context, arguments)
        context = parser.make_context(name, list(arguments), parent=context)
    assert context.command is parser


TINY_TRAINING = (
    "train --dataset cancer --split iid --clients 2 --clients-per-round 2 --local-steps 1 --batch-size 2 --rounds 20 "
    "--keep-rounds 0,10,20 --json"
)


@pytest.mark.parametrize("line", EVALUATIONS)
def test_every_evaluation_is_possible(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the evaluation itself: names, settings and their combination."""
    asked: list[Any] = []

    def evaluate(cells: list[Any], *_: Any) -> ResultDocument:
        asked.extend(cells)
        return ResultDocument(environment={}, cells=[])

    for way in ("evaluate", "evaluate_in_processes", "make_shard"):
        monkeypatch.setattr(command, way, evaluate)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.chdir(tmp_path)
    (config,) = blocks(README, "toml")
    (tmp_path / "experiment.toml").write_text(config)
    (tmp_path / "my_weights.pt").touch()
    if "--training" in line:
        assert run(shlex.split(TINY_TRAINING)) == 0
    assert run(shlex.split(line)[1:]) == 0
    assert asked


NAMES = [*ATTACKS, *DEFENSES, *DATASETS, *MODELS, *PRESETS, *Tap]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_can_be_chosen_is_in_the_readme(name: str) -> None:
    assert f"`{name}`" in README


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(README, "python")
    (tmp_path / "example.py").write_text(code)
    runpy.run_path(str(tmp_path / "example.py"))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("cell fed_cdp T2.step ")
    assert any(line.startswith("control none T2.step leaks ") for line in printed)


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(file: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text(encoding="utf-8"))
    assert links and all((ROOT / link).exists() for link in links)
