"""What the tests of the commands share: no data root but an empty one, and a short name for running a command."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cli import run


@dataclass(frozen=True)
class Finished:
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process, in an empty folder without datasets beyond the bundled ones."""
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "no-data"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Finished:
        capsys.readouterr()
        code = run(list(arguments))
        return Finished(code, *capsys.readouterr())

    return command
