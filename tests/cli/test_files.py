"""Every command that reads or writes a file, at special files, hostile content and places that cannot be written."""

import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.results import claimed

EVALUATE = "evaluate --defense none --dataset digits --model mlp --victims 2 --attack-arg max_iterations=1 "
TRAIN = (
    "train --dataset cancer --model logistic --clients 4 --clients-per-round 2 --rounds 1 --local-steps 1 "
    "--batch-size 2 --split iid "
)
AUDIT = "audit --defense fed_cdp --canaries 40 --others 0 --steps 1 --canary norm "

# Command line, and what the one line must say. pipe is a FIFO, zero a link to /dev/zero.
READING: dict[str, tuple[str, str]] = {
    "pipe as config": ("evaluate --config pipe", "it is a pipe); check --config"),
    "device as config": ("evaluate --config zero", "it is a device); check --config"),
    "deep config": ("evaluate --config deep.toml", "is not TOML"),
    "long number": ("evaluate --config long.toml", "is not TOML"),
    "number as training": ("evaluate --config training.toml", "training is no path in quotes"),
    "NUL in a path": ("evaluate --config nul.toml", "embedded null byte"),
    "NUL in the folder of a run": ("evaluate --config nul-training.toml", "embedded null byte"),
    "pipe as weights": (EVALUATE + "--weights pipe", "it is a pipe); check --weights"),
    "objects as weights": (EVALUATE + "--weights objects.pt", "other things than tensors"),
    "list as weights": (EVALUATE + "--weights list.pt", "save a state_dict"),
    "objects as variates": (EVALUATE + "--surface 1 --variates objects.pt", "other things than tensors"),
    "weights as variates": (EVALUATE + "--surface 1 --variates list.pt", "valid dictionary"),
    "pipe as data": ("evaluate --defense none --dataset pipe.npz", "is not a file"),
    "device as data": ("evaluate --defense none --dataset zero.npz", "is not a file"),
    "pipe as a run": ("evaluate --training run", "it is a pipe"),
    "pipe as results": ("compare run run", "it is a pipe"),
    "device as results": ("history zero zero", "it is a device"),
    "pipe as baseline": ("check good --baseline pipe", "check --baseline"),
    "pipe as notes": ("account --training run", "it is a pipe"),
    "pipe as schedule": (
        "account --sigma-schedule pipe --sampling-rate 0.1", "it is a pipe); check --sigma-schedule",
    ),
    "deep schedule": ("account --sigma-schedule deep.json --sampling-rate 0.1", "numbers only"),
    "endless sigma": ("account --sigma-schedule long.json --sampling-rate 0.1", "numbers only"),
    "pipe to report": ("report run", "nothing to report"),
}  # fmt: skip

WRITING: dict[str, tuple[str, str]] = {
    "report to a device": ("report good --out zero", "(it is a link); choose another place with --out"),
    "report to a pipe": ("report good --out pipe", "(it is a pipe)"),
    "report onto results": ("report good --out good/results.json", "(it is a run's own file)"),
    "junit onto results": (
        "check good --baseline none.json --junit good/results.json",
        "choose another place with --junit",
    ),
    "tables to a file": ("report good --out file --format csv", "choose another place with --out"),
    "audit to nowhere": (AUDIT + "--out file/audit.json", "choose another place with --out"),
    "audit to a pipe": (AUDIT + "--out pipe", "(it is a pipe)"),
    "junit to a pipe": ("check good --baseline none.json --junit pipe", "choose another place with --junit"),
    "summary to a link": ("check good --baseline none.json --summary zero", "choose another place with --summary"),
    "baseline to a pipe": ("check good --baseline pipe --update", "choose another place with --baseline"),
    "history to a pipe": ("history good --out pipe", "(it is a pipe)"),
    "training to a file": (TRAIN + "--out file", "choose another place with --out"),
    "a run in a run": (EVALUATE + "--out busy", "another run is writing into 'busy'"),
    "training in a run": (TRAIN + "--out busy", "another run is writing into 'busy'"),
}


class Thing:
    """What no file of weights may hold."""


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Special files and hostile content in the working folder."""
    for name in ("pipe", "pipe.npz"):
        os.mkfifo(tmp_path / name)
    for name in ("zero", "zero.npz"):
        (tmp_path / name).symlink_to("/dev/zero")
    for folder in ("run", "good"):
        (tmp_path / folder).mkdir()
    for name in ("results.json", "training.json"):
        os.mkfifo(tmp_path / "run" / name)
    (tmp_path / "good" / "results.json").write_text('{"schema_version": 1, "environment": {}, "cells": []}')
    texts = {
        "file": "",
        "deep.toml": "attack = " + "[" * 50_000 + "]" * 50_000,
        "long.toml": "victims = " + "9" * 6_000,
        "training.toml": "training = 3",
        "nul.toml": 'defense = "none"\nweights = "a\\u0000b"',
        "nul-training.toml": 'training = "a\\u0000b"',
        "deep.json": "[" * 50_000 + "]" * 50_000,
        "long.json": "[" + "9" * 400 + "]",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    torch.save({"weight": Thing()}, tmp_path / "objects.pt")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")


def types(folder: Path) -> list[tuple[str, int]]:
    return [(path.name, stat.S_IFMT(path.lstat().st_mode)) for path in sorted(folder.iterdir())]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("line", "mend"), [*READING.values(), *WRITING.values()], ids=[*READING, *WRITING])
def test_one_line_and_nothing_is_touched(
    harness: Callable[..., Any], tmp_path: Path, line: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.audit._audit_all", lambda *_: pytest.fail("computed before it looked"))
    before = types(tmp_path)
    with claimed(tmp_path / "busy"):
        finished = harness(*shlex.split(line))
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("harness: ") and finished.err.count("\n") == 1
    assert mend in finished.err
    assert [one for one in types(tmp_path) if one in before] == before
