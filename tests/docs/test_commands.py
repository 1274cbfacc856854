"""Every command in README and guides is understood, and every evaluation they print is possible."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import harness.cli.evaluate as command
from harness.cli import run
from harness.cli.app import COMMANDS, app
from harness.papers import TABLES
from harness.results import ResultDocument

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
#: Pages whose evaluations need nothing that another page makes first.
MANUAL = ("README", "start", "evaluating", "training-and-accounting", "reports-and-gates", "own-model-and-data")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def lines_of(page: str) -> list[str]:
    """The harness commands of a page, without what is said of them."""
    found = [line.partition("#")[0].strip() for block in blocks(PAGES[page], "console") for line in block.splitlines()]
    return [line[line.index("harness ") :] for line in found if re.search(r"(^|/)harness ", line)]


EVERY = sorted({line for page in PAGES for line in lines_of(page)})
EVALUATIONS = sorted({line for page in MANUAL for line in lines_of(page) if line.startswith("harness evaluate")})


def test_every_command_is_shown_somewhere() -> None:
    assert {line.split()[1] for line in EVERY} >= set(COMMANDS)
    assert len(EVERY) > 60 and len(EVALUATIONS) > 12


def test_every_table_of_the_papers_has_its_command() -> None:
    assert {line.split()[2] for line in lines_of("papers-tables")} == set(TABLES)


@pytest.mark.parametrize("line", EVERY)
def test_it_is_understood(line: str) -> None:
    """Parsed with all its options and their types, not executed."""
    _, *arguments = shlex.split(line)
    if arguments[0] in ("--version", "--show-completion"):
        return  # run by tests/cli/test_start.py
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
def test_the_evaluation_is_possible(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the evaluation itself: names, settings and their combination."""
    asked: list[Any] = []

    def evaluate(cells: list[Any], *_: Any) -> ResultDocument:
        asked.extend(cells)
        return ResultDocument(environment={}, cells=[])

    for way in ("evaluate", "evaluate_in_processes", "make_shard"):
        monkeypatch.setattr(command, way, evaluate)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.chdir(tmp_path)
    (config,) = blocks(PAGES["evaluating"], "toml")
    (tmp_path / "experiment.toml").write_text(config)
    (tmp_path / "my_weights.pt").touch()
    if "--training" in line:
        assert run(shlex.split(TINY_TRAINING)) == 0
    assert run(shlex.split(line)[1:]) == 0
    assert asked
