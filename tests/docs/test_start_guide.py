"""The first page's commands, in its order and in an empty folder, up to one's own defense."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "start.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
            for line in block.splitlines()]  # fmt: skip


def test_it_leads_from_a_first_look_to_an_own_defense() -> None:
    assert [" ".join(line.split()[:2]) for line in COMMANDS] == [
        "harness evaluate", "harness report", "harness evaluate", "harness evaluate", "harness new",
    ]  # fmt: skip


@pytest.mark.slow
def test_its_commands_run(harness: Callable[..., Any], tmp_path: Path) -> None:
    for line in COMMANDS:
        _, *arguments = shlex.split(line)
        if "auto" in arguments:
            continue  # ten minutes, and no other code than the rest
        done = harness(*arguments)
        assert done.code == 0, done.err
    assert {"runs", "report.html", "my_defense"} <= {path.name for path in tmp_path.iterdir()}
    assert list((tmp_path / "runs" / "pictures").glob("*.png"))
