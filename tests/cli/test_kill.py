"""A run killed in the middle and resumed gives the numbers of a run that was never stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.results import read_results

OPTIONS = """
    --defense fed_cdp,fed_sdp --defense-arg fed_cdp.sigma=0.05 --dataset digits --victims 8
    --attack-arg max_iterations=8 --no-pictures --json --out
"""
LINE = ("evaluate", *OPTIONS.split())


def numbers(run_folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Everything but how long it took."""
    cells = [cell.model_dump(exclude={"seconds"}) for cell in read_results(run_folder).cells]
    return cells, (run_folder / "victims.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("finished_cells", [0, 1, 4])
def test_killed_and_resumed(harness: Callable[..., Any], program: str, tmp_path: Path, finished_cells: int) -> None:
    stopped = tmp_path / "stopped"
    process = subprocess.Popen([program, *LINE, str(stopped)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    # Without a finished cell: as soon as the first reconstruction is on disk, that is inside a cell.
    wanted = ("cells/*.json", finished_cells) if finished_cells else ("reconstructions/*.npz", 1)
    while len(list(stopped.glob(wanted[0]))) < wanted[1]:
        assert process.poll() is None and time.monotonic() < deadline, "ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    assert harness(*LINE, str(stopped), "--resume").code == 0
    assert harness(*LINE, str(tmp_path / "whole")).code == 0
    assert numbers(stopped) == numbers(tmp_path / "whole")
