"""What a command imports before it has something to do, what can be listed, and how every command ends."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.cli.app import COMMANDS, app
from harness.cli.app import run as command_line
from harness.cli.catalogue import text

Harness = Callable[..., Any]

SLOW = {"torch", "numpy", "scipy", "matplotlib"}
PROGRAM = shutil.which("harness", path=Path(sys.executable).parent) or ""


def process(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False, **settings)


@pytest.mark.parametrize("line", [
    "--help", "list", *(pytest.param(line, marks=pytest.mark.slow) for line in ("--version", "list attacks --json")),
])  # fmt: skip
def test_a_command_that_only_says_something_imports_nothing_slow(line: str) -> None:
    code = f"import sys; from harness.cli import run; run({line.split()}); print(set(sys.modules) & {SLOW})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "set()"


def completed(words: str, place: int) -> subprocess.CompletedProcess[str]:
    """What bash is told could stand at a place of a line."""
    asked = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    return process(env=os.environ | asked)


def test_a_shell_completes_commands_and_options() -> None:
    assert completed("harness ", 1).stdout.split() == list(COMMANDS)
    assert completed("harness ev", 1).stdout.split() == ["evaluate"]
    assert completed("harness list --js", 2).stdout.split() == ["--json"]


def test_completing_a_command_imports_nothing_slow() -> None:
    code = f"import sys; from harness.cli import run; run([]); print(set(sys.modules) & {SLOW})"
    asked = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": "harness ", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


def test_the_script_of_a_shell_is_printed() -> None:
    done = process("--show-completion", "bash", env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert (done.returncode, done.stderr) == (0, "") and "_HARNESS_COMPLETE=complete_bash" in done.stdout


def test_the_list_is_that_of_the_registries() -> None:
    written = (files("harness.cli") / "catalogue.json").read_text(encoding="utf-8")
    assert written == text(), "write it again: python -m harness.cli.catalogue"
    assert json.loads(written)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_of_a_command_what_the_command_says_itself(name: str) -> None:
    group: Any = typer.main.get_command(app)
    said = group.get_command(None, name).help
    assert " ".join(said.split("\n\n")[0].split()) == COMMANDS[name]


def test_help_shows_every_command(harness: Harness) -> None:
    finished = harness("--help")
    assert finished.code == 0 and all(f"\n  {name} " in finished.out for name in COMMANDS)


# As if it were in this package: in a test's own function it is the mistake of who wrote that.
OURS: dict[str, Any] = {"__name__": "harness.made_up"}
exec("def fail(raised):\n    def failing(root):\n        raise raised\n    return failing", OURS)

FAULTS = {
    "fault": (ValueError("two\nlines"), 70, "ValueError: two lines"),
    "memory": (MemoryError(), 2, "take fewer"),
    "memory of torch": (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 2, "take fewer"),
    "somebody's exit": (SystemExit(0), 70, "SystemExit: 0"),
}


@pytest.mark.parametrize(("raised", "code", "said"), FAULTS.values(), ids=FAULTS)
def test_a_fault_has_a_code_of_its_own_and_one_line(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr("harness.cli.data.dataset_status", OURS["fail"](raised))
    finished = harness("data", "status")
    assert (finished.code, finished.out, finished.err.count("\n")) == (code, "", 1)
    assert said in finished.err
    monkeypatch.setenv("HARNESS_TRACEBACK", "1")
    assert ("Traceback" in harness("data", "status").err) == (code == 70)


def test_a_mistake_in_own_code_is_told_by_its_line(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: Path) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("harness.cli.data.dataset_status", fail)
    finished = harness("data", "status")
    line = fail.__code__.co_firstlineno + 1
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert f"harness: test_start.py, line {line}, in fail: RuntimeError: boom" in finished.err


@pytest.mark.parametrize("times", [1, 2])
def test_a_hint_is_given_once(harness: Harness, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The typer and the click that come with Flower both add it."""
    hint = " Did you mean 'evaluate'?" * times

    def refuse(*_: Any) -> Any:
        raise typer.BadParameter("No such command 'evalute'." + hint)

    monkeypatch.setattr("harness.cli.app._parsed", refuse)
    finished = harness("evalute")
    assert finished.code == 2 and finished.err.count("Did you mean 'evaluate'?") == 1


def test_what_rich_makes_of_a_closed_pipe_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: Path) -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  (as rich does)

    monkeypatch.setattr("harness.cli.data.dataset_status", fail)
    with pytest.raises(BrokenPipeError):
        command_line(["data", "status"])


def test_an_output_that_nobody_reads_ends_it_in_silence() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    finished = subprocess.run([PROGRAM, "list"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (141, "")


@pytest.mark.parametrize(("line", "unbuffered"), [
    ("list", ""),
    ("list --json", "1"),
    pytest.param("list", "1", marks=pytest.mark.slow),
    *(pytest.param("account --sigma 6 --steps 9 --json", buffers, marks=pytest.mark.slow) for buffers in ("", "1")),
    *(
        pytest.param(line, unbuffered, marks=pytest.mark.slow)
        for line in ("--version", "--help")
        for unbuffered in ("", "1")
    ),
    pytest.param("list --json", "", marks=pytest.mark.slow),
])  # fmt: skip
def test_an_output_that_cannot_be_written_is_told_in_one_line(line: str, unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [PROGRAM, *line.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    said = "harness: cannot write standard output (No space left on device)\n"
    assert (finished.returncode, finished.stderr) == (2, said)


@pytest.mark.slow
def test_a_notebooks_setting_of_matplotlib_does_not_matter(tmp_path: Path) -> None:
    environment = os.environ | {"MPLBACKEND": "module://of_a_notebook", "HARNESS_DATA": str(tmp_path)}
    assert process("history", "absent", env=environment).returncode == 2


@pytest.mark.parametrize("place", ["harness.cli.app", "typer", "torch"])
def test_stopped_by_hand_while_it_imports_it_is_silent(place: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.format(place=place))
    finished = process("data", "status", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "", "")


# As a signal would be while that module is imported.
INTERRUPTED = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{place}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
"""


COMPUTED = "harness.models; harness.models.RowModel('mlp', (1, 8, 8), 10)"


@pytest.mark.parametrize(
    ("first", "then", "times"),
    [
        ("torch", f"{COMPUTED}; harness.models.RowModel('mlp', (1, 8, 8), 10)", 1),
        # A client of somebody's federation computes nothing of ours.
        pytest.param("torch", "harness.capture, harness.models", 0, marks=pytest.mark.slow),
        pytest.param("harness", COMPUTED, 0, marks=pytest.mark.slow),
    ],
)
def test_settings_that_come_too_late_for_results_are_told_once(first: str, then: str, times: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("MKL_CBWR", "GOMP_SPINCOUNT")}
    code = f"import {first}; import torch, {then}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert said.stderr.count("torch was imported before harness") == times
