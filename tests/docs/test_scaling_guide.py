"""The guide to scaling: its commands run as printed, and give what one process gives."""

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line) for line in block.splitlines()]


def cells(folder: Path) -> dict[str, Any]:
    found = {path.name: json.loads(path.read_text()) for path in (folder / "cells").glob("*.json")}
    for stored in found.values():
        del stored["cell"]["seconds"]
    return found


def test_it_has_a_block_for_every_way() -> None:
    assert [("--jobs" in block, "--shard" in block, "--cluster" in block) for block in BLOCKS] == [
        (True, False, False), (False, True, False), (False, True, False), (False, False, True), (True, False, True),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=["jobs", "shards", "tables", "ray", "slurm"])
def test_its_commands_run(tmp_path: Path, block: str) -> None:
    needed = {"ray": "ray", "slurm": "submitit"}
    for cluster, package in needed.items():
        if f"--cluster {cluster}" in block and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    program = Path(sys.executable).parent / "harness"
    own = commands(block)
    for _, *arguments in own:
        done = subprocess.run([program, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    out = own[-1][own[-1].index("--out") + 1]
    table = [word for word in own[-1][1:] if word not in ("--resume", "--out", out)]
    one = table if "reproduce" in table else ["evaluate", "--preset", "smoke", "--threads", "1"]
    assert subprocess.run([program, *one, "--out", "one"], cwd=tmp_path, capture_output=True).returncode == 0
    assert cells(tmp_path / out) == cells(tmp_path / "one")
