"""Help and completion of every command: at once, the same words as the command's own, and no torch for either."""

import json
import os
import resource
import statistics
import subprocess
import sys
from importlib.resources import files
from typing import Any

import pytest
import typer

from harness.cli.app import COMMANDS, app
from harness.cli.catalogue import sketches
from harness.cli.grouping import GROUPS
from harness.cli.sketch import sketch

WHOLE: Any = typer.main.get_command(app)
ROOT = WHOLE.make_context("harness", ["list"], resilient_parsing=True)
SLOW = {"torch", "numpy", "scipy", "matplotlib"}


def leaves(found: Any, above: Any, name: str) -> dict[str, tuple[Any, Any]]:
    context = found.context_class(found, info_name=name, parent=above, resilient_parsing=True, terminal_width=80)
    inner = getattr(found, "commands", {})
    below = [leaves(one, context, part) for part, one in inner.items()]
    return {context.command_path: (found, context)} | {path: one for each in below for path, one in each.items()}


REAL = {path: one for name in COMMANDS for path, one in leaves(WHOLE.get_command(ROOT, name), ROOT, name).items()}
DRAWN = {path: one for name in COMMANDS for path, one in leaves(sketch(name), ROOT, name).items()}


def test_the_file_is_that_of_the_commands() -> None:
    written = (files("harness.cli") / "commands.json").read_text(encoding="utf-8")
    assert written == sketches(), "write it again: python -m harness.cli.catalogue"


def test_every_command_is_drawn() -> None:
    assert list(DRAWN) == list(REAL) and len(REAL) > len(COMMANDS)


@pytest.mark.parametrize("path", REAL)
@pytest.mark.parametrize("width", [50, 80, 130])
def test_help_is_the_commands_own(path: str, width: int) -> None:
    said = []
    for command, context in (REAL[path], DRAWN[path]):
        context.terminal_width = context.max_content_width = width
        said.append(command.get_help(context))
    assert said[0] == said[1] and "--help" in said[0]


@pytest.mark.parametrize("path", [path for path, (one, _) in REAL.items() if getattr(one, "commands", None)])
def test_a_group_lists_its_commands_uncut(path: str) -> None:
    command, context = REAL[path]
    context.terminal_width = context.max_content_width = 80
    said = " ".join(command.get_help(context).split())
    assert all(" ".join(one.help.split("\n\n")[0].split()) in said for one in command.commands.values())


@pytest.mark.parametrize("path", REAL)
def test_the_same_lines_are_understood(path: str) -> None:
    """What a shell completes depends on which options take a value, and which may come again."""
    options = []
    for command, context in (REAL[path], DRAWN[path]):
        found = [one for one in command.get_params(context) if one.name != "help"]
        shapes = [(one.opts if one.param_type_name == "option" else [], one.nargs) for one in found]
        options.append(
            [
                (sorted(shape[0]), shape[1], bool(getattr(one, "multiple", 0)))
                for shape, one in zip(shapes, found, strict=True)
            ]
        )
    assert options[0] == options[1]


@pytest.mark.parametrize("path", REAL)
def test_many_options_are_in_groups(path: str) -> None:
    command, context = REAL[path]
    grouped = GROUPS.get(command.name, {}) if path.count(" ") == 1 else {}
    names = {one.name for one in command.get_params(context)} - {"help"}
    assert len(names) <= 20 or grouped
    if grouped:
        assert names <= {name for group in grouped.values() for name in group}


def test_what_is_offered_is_what_the_help_names() -> None:
    """A word that a command does not take would be worse than none."""
    table = json.loads((files("harness.cli") / "commands.json").read_text(encoding="utf-8"))
    sections = json.loads((files("harness.cli") / "catalogue.json").read_text(encoding="utf-8"))
    rows = [row for one in table.values() for row in one.get("commands", {"": one}).values()]
    offered = [one for row in rows for one in row["parameters"] if one.get("values")]
    assert len(offered) > 50
    for one in offered:
        words = one["values"]
        assert words in sections if isinstance(words, str) else all(word in one["record"][1] for word in words), one


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=os.environ | environment
    )


ALL = f"""
import sys
from harness.cli.app import run
for line in sys.argv[1:]:
    assert run(line.split()) == 0, line
    assert not set(sys.modules) & {SLOW}, (line, set(sys.modules) & {SLOW})
"""


def test_no_help_imports_anything_slow() -> None:
    lines = [f"{path.removeprefix('harness ')} {flag}" for path in REAL for flag in ("--help", "-h")]
    done = run(ALL, *lines, "bench", "data", "evaluate --defense none --help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: harness") == len(lines) + 3


COMPLETE = f"""
import sys
from harness.cli.app import run
run([])
assert not set(sys.modules) & {SLOW}
"""


def completed(line: str) -> list[str]:
    words = line.split(" ")
    asked = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = run(COMPLETE, **asked)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("harness evaluate --defense fed_c", "fed_cdp"),
        ("harness evaluate --defense none,fed_c", "none,fed_cdp"),
        ("harness evaluate --attack cp", "cpl"),
        ("harness evaluate --dataset mnist-s", "mnist-sample"),
        ("harness evaluate --model mlp", "mlp"),
        ("harness evaluate --preset to", "tour"),
        ("harness evaluate --sent-as fl", "float16"),
        ("harness evaluate --device cu", "cuda"),
        ("harness train --algorithm sca", "scaffold"),
        ("harness judge --update-model un", "unroll"),
        ("harness export --to sa", "sarif"),
        ("harness data fetch mni", "mnist-sample"),
        ("harness list att", "attacks"),
        ("harness bench at", "attack"),
        ("harness view --ser", "--serve"),
        ("harness claims --unit ex", "example"),
    ],
)
def test_values_are_completed_without_torch(line: str, first: str) -> None:
    found = completed(line)
    assert first in found and all(one.startswith(line.split(" ")[-1]) for one in found)


def test_what_no_list_has_is_left_to_the_shell() -> None:
    """A dataset may be a file, which a shell finds itself."""
    assert completed("harness evaluate --dataset ./my") == completed("harness report runs") == []
    assert completed("harness claims --model ml") == []


def test_help_that_is_a_value_is_none() -> None:
    from harness.cli.app import run

    assert run(["export", "absent", "--system", "--help", "--out", "x.csv"]) == 2
    assert run(["evaluate", "--no-such-option", "--help"]) == 2


@pytest.mark.parametrize("line", ["evaluate --help", "judge --help"])
def test_help_takes_less_than_a_second(line: str) -> None:
    """Of the processor: how busy the machine is besides makes no difference."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("from harness.cli import main; main()", *line.split()).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(spent) < 1
