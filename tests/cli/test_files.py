"""Every command that reads or writes a file, at special files, hostile content and places that cannot be written.

And what names hold: nothing of it steers a terminal, and a name that is not text is told in one line.
"""

import errno
import io
import json
import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.table import Table
from rich.text import Text

from harness.base.progress import progress
from harness.cli import Stream
from harness.cli.console import Screen, note
from harness.results import cell_key, claimed
from harness.results.card import Card

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
@pytest.mark.parametrize(("line", "fix"), [*READING.values(), *WRITING.values()], ids=[*READING, *WRITING])
def test_one_line_and_nothing_is_touched(
    harness: Callable[..., Any], tmp_path: Path, line: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.audit.audit", lambda *_: pytest.fail("computed before it looked"))
    before = types(tmp_path)
    with claimed(tmp_path / "busy"):
        finished = harness(*shlex.split(line))
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("harness: ") and finished.err.count("\n") == 1
    assert fix in finished.err
    assert [one for one in types(tmp_path) if one in before] == before


STEERING = {
    "escape": "\x1b[31mred", "escape of one byte": "\x9b31mred", "bidirectional": "\u202egnp.exe", "bell": "\x07",
    "return": "\rover", "line": "two\nlines", "separator": "\u2028two", "surrogate": "\udc9b31m", "tag": "\U000e0041",
    "markup": "[bold]no[/nothing]",
}  # fmt: skip


def is_harmless(text: str) -> bool:
    return all(one.isprintable() or one in "\n\t" for one in text)


@pytest.mark.parametrize("name", STEERING.values(), ids=STEERING)
def test_no_name_steers_the_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written on a stream; what the tables' own colours add comes through."""
    streams = {
        one: Stream(io.BytesIO(), "utf-8", "backslashreplace", write_through=True) for one in ("stdout", "stderr")
    }
    for one, stream in streams.items():
        monkeypatch.setattr(sys, one, stream)
    monkeypatch.setattr(streams["stderr"], "isatty", lambda: True, raising=False)

    def written(stream: str) -> str:
        return streams[stream].buffer.getvalue().decode()

    table = Table(name)
    table.add_row(name, Text(name))
    Screen(80).print(table, name, Text(name))
    print(name)
    note(name)
    handler = logging.StreamHandler(sys.stderr)
    handler.emit(logging.makeLogRecord({"msg": name}))
    assert is_harmless(written("stdout")) and is_harmless(written("stderr"))
    note("")
    sys.stdout.write(json.dumps({"name": name}, ensure_ascii=False))
    assert json.loads(written("stdout").splitlines()[-1]) == {"name": name}
    with progress(name, 1) as bar:
        bar.advance(1, name)
    assert is_harmless(written("stderr").replace("\r", "").replace("\x1b[A", ""))
    monkeypatch.setenv("FORCE_COLOR", "1")
    Screen(80).print(Text(f"bold {name}", style="bold"))
    assert "\x1b[1m" in written("stdout")
    assert not any(code in written("stdout") for code in ("\x1b[31m", "\x9b", "\r", "\x07"))


SCRIPT = """
import shlex, sys
from harness.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["harness", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        print("code", end.code, flush=True)
"""


def rename(run: Path, old: str, new: str) -> None:
    """Another name in all files of a run, whose cells are still found: their keys go by their settings."""
    words = json.dumps(old), json.dumps(new)
    paths = [*(run / "cells").iterdir()]
    keys = {path.stem: cell_key(json.loads(path.read_text().replace(*words))["settings"]) for path in paths}
    for path in (*paths, run / "results.json", run / "victims.jsonl"):
        content = path.read_text().replace(words[0].replace(" ", ""), words[1])
        for before, after in keys.items():
            content = content.replace(before, after)
        path.write_text(content)
        if path.stem in keys:
            path.rename(path.with_stem(keys[path.stem]))


@pytest.mark.slow
def test_no_command_lets_names_of_files_steer_the_terminal(harness: Callable[..., Any], tmp_path: Path) -> None:
    name = "".join(one for one in STEERING.values() if "\udc9b" not in one)
    assert (
        harness(
            *shlex.split(EVALUATE.replace("--victims 2", "--victims 24") + "--surface 2 --no-pictures --out true")
        ).code
        == 0
    )
    assert harness("site", "true", "--out", "public").code == 0
    (path,) = (tmp_path / "public" / "cards").iterdir()
    card = json.loads(path.read_text())
    card["environment"]["versions"]["torch"] = name
    path.write_bytes(Card.model_validate(card).sealed().content())
    shutil.copytree("true", "named")
    rename(tmp_path / "named", "digits", name)
    lines = [
        "check named true --baseline both.json --update", "check true --baseline both.json", "history named named",
        "compare named named", "compare named true", "report named --out page.md --format md", "site named",
        f"verify {path}",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(lines), capture_output=True, text=True, cwd=tmp_path
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("code ")] == [
        f"code {code}" for code in (0, 1, 0, 0, 2, 0, 0, 0)
    ], done  # fmt: skip
    assert is_harmless(done.stdout) and is_harmless(done.stderr)
    assert "red" in done.stdout and "gnp.exe" in done.stdout + done.stderr
    assert not any(line.startswith("lines") for line in (done.stdout + done.stderr).splitlines())


NOT_TEXT = {
    "training": EVALUATE + "--training NAME", "data root": EVALUATE + "--data-root NAME",
    "weights": EVALUATE + "--weights NAME.pt", "model": EVALUATE + "--model NAME:make",
    "output": EVALUATE + "--out NAME",
    "dataset": "evaluate --defense none --dataset NAME.npz", "run": "report NAME", "card": "verify NAME",
}  # fmt: skip


def in_bash(line: bytes, folder: Path, before: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = os.fsencode(Path(sys.executable).parent / "harness")
    return subprocess.run([b"bash", b"-c", before + b"exec " + program + b" " + line], capture_output=True, cwd=folder)


def is_one_line(finished: subprocess.CompletedProcess[bytes], said: bytes) -> bool:
    err = finished.stderr
    return finished.returncode == 2 and err.startswith(b"harness: ") and err.count(b"\n") == 1 and said in err


@pytest.mark.parametrize("line", [
    pytest.param(line, id=name, marks=() if name in ("output", "dataset", "run") else pytest.mark.slow)
    for name, line in NOT_TEXT.items()
])  # fmt: skip
def test_a_name_that_is_not_text_is_told(line: str, tmp_path: Path) -> None:
    finished = in_bash(line.encode().replace(b"NAME", b"$'\\xff'"), tmp_path)
    assert is_one_line(finished, b"is not text in UTF-8; rename it") and finished.stdout == b"", finished


PLACES = {
    "data root": (b"export HARNESS_DATA=$'\\xff'; ", EVALUATE.replace("digits", "mnist")),
    "folder": (b"mkdir $'\\xff'; cd $'\\xff'; ", TRAIN + "--out here && harness evaluate --training here"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "line"), PLACES.values(), ids=PLACES)
def test_a_place_that_is_not_text_is_told_or_does_no_harm(before: bytes, line: str, tmp_path: Path) -> None:
    finished = in_bash(line.encode(), tmp_path, before)
    assert finished.returncode in (0, 2) and finished.stderr.count(b"\n") == (finished.returncode == 2), finished


@pytest.mark.parametrize(
    ("line", "handles"),
    [
        pytest.param(line, handles, marks=pytest.mark.slow)
        for line, handles in (("report good", 16), (EVALUATE, 8), (EVALUATE, 16), (TRAIN, 16))
    ],
    ids=["report", "evaluate, 8", "evaluate", "train"],
)
def test_too_few_file_handles_are_told(line: str, handles: int, tmp_path: Path) -> None:
    finished = in_bash(line.encode(), tmp_path, f"ulimit -n {handles}; ".encode())
    assert finished.returncode == 0 or is_one_line(finished, b""), finished


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.get)
def test_a_full_disk_is_told_wherever_it_is_met(harness: Callable, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Also by a library, in a folder that no option names."""

    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("harness.cli.list._rows", full)
    finished = harness("list", "defenses")
    assert finished.code == 2 and "make room" in finished.err and finished.err.count("\n") == 1
