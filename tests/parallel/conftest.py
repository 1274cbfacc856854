"""What the tests of spread runs share: a small run of several units, and how two folders compare."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Content = tuple[list[str], dict[str, Any], Any]


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Six cells in three units, whose undefended one is another's positive control."""
    return (
        "evaluate", "--dataset", "digits", "--model", "mlp2", "--defense", "none,fed_cdp,pruning", "--attack", "idlg",
        "--surface", "1,2", "--victims", "2", "--attack-arg", "max_iterations=2", "--no-pictures", "--threads", "1",
    )  # fmt: skip


# Its process dies, once, in whatever worker builds it first.
_DYING = """
import multiprocessing, os, pathlib
from torch import nn

def make(image_shape, classes):
    first = pathlib.Path("first")
    if multiprocessing.current_process().name != "MainProcess" and not first.exists():
        first.touch()
        os.kill(os.getpid(), 9)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, classes))
"""


@pytest.fixture
def dying(harness: Callable[..., Any]) -> str:
    """A network of the current folder that loses the first worker that builds it."""
    Path("network_of_mine.py").write_text(_DYING)
    return "network_of_mine:make"


@pytest.fixture(scope="session")
def content() -> Callable[[Path], Content]:
    """Reads lines of victims sorted, cells by file, and the document, without how long each took."""

    def read(folder: Path) -> Content:
        cells = {path.name: _timeless(json.loads(path.read_text())) for path in (folder / "cells").glob("*.json")}
        victims = sorted((folder / "victims.jsonl").read_text().splitlines())
        return victims, cells, _timeless(json.loads((folder / "results.json").read_text()))

    return read


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(entry) for name, entry in value.items() if name != "seconds"}
    return [_timeless(entry) for entry in value] if isinstance(value, list) else value
