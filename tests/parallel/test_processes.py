"""A run over processes: the same bytes as one, and none of them is missed when it is lost."""

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from harness.base import limits
from harness.base.errors import UsageError
from harness.experiment import cell_settings
from harness.parallel import processes
from harness.parallel.processes import begin_workers
from harness.parallel.units import Job, Unit

Command = Callable[..., Any]
Small = tuple[str, ...]

SETTLED = (
    "evaluate", "--dataset", "digits", "--model", "mlp,logistic", "--defense", "none", "--attack", "auto",
    "--surface", "2", "--victims", "6", "--no-pictures", "--threads", "1",
)  # fmt: skip


@pytest.fixture(name="in_processes")
def run_in_processes(program: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command in a process of its own, as a user calls it."""
    return lambda small, out, *more: subprocess.run(
        [program, *small, *more, "--out", out], capture_output=True, text=True
    )


# Quick ones of the same: shards in test_shards.py, one attack in test_worker_pool.py.
@pytest.mark.slow
@pytest.mark.parametrize("settled", [False, True])
def test_the_same_bytes_as_one_process(
    harness: Command, in_processes: Command, small: Small, content: Callable[[Path], Any], settled: bool
) -> None:
    """Attacks that an earlier one settles are skipped alike."""
    asked = SETTLED if settled else small
    assert harness(*asked, "--out", "one").code == 0
    done = in_processes(asked, "two", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert content(Path("two")) == content(Path("one"))


@pytest.mark.slow
def test_a_worker_that_grows_is_kept() -> None:
    pytest.importorskip("psutil", reason="without it loky ends no worker")
    executor = begin_workers(1, threads=1)
    try:
        first = executor.submit(os.getpid).result()
        time.sleep(1.1)  # loky looks no more often than every second
        executor.submit(exec, "import sys; sys.kept = b'more' * 10**8").result()
        assert executor.submit(os.getpid).result() == first
    finally:
        executor.shutdown(wait=True, kill_workers=True)


@pytest.mark.slow
def test_a_killed_worker_is_not_missed(
    harness: Command, in_processes: Command, small: Small, content: Callable[[Path], Any], dying: str
) -> None:
    own = (*small[:4], dying, *small[5:])
    done = in_processes(own, "two", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "a worker was lost" in done.stderr and "64 rows at a time" in done.stderr
    assert harness(*own, "--out", "one").code == 0
    assert content(Path("two")) == content(Path("one"))


@pytest.mark.slow
def test_earlier_work_is_taken_only_where_asked(harness: Command, in_processes: Command, small: Small) -> None:
    """And what the processes share is made by one of them."""
    assert in_processes(small, "run", "--jobs", "2").returncode == 0
    before = {path: path.stat().st_mtime_ns for path in Path("run/cells").iterdir()}
    assert in_processes(small, "run", "--jobs", "2", "--resume").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in Path("run/cells").iterdir()} == before
    assert in_processes(small, "run", "--jobs", "2").returncode == 0
    after = {path: path.stat().st_mtime_ns for path in Path("run/cells").iterdir()}
    assert after.keys() == before.keys() and all(after[path] > before[path] for path in before)


@pytest.mark.slow
def test_a_cell_of_a_time_to_come_is_an_earlier_runs(
    harness: Command, in_processes: Command, small: Small, content: Callable[[Path], Any]
) -> None:
    """Whoever edits one may give it any time; workers tell what this run made by it."""
    assert harness(*small, "--out", "run").code == 0
    before, to_come = content(Path("run")), time.time() + 10**6
    for path in Path("run/cells").iterdir():
        path.write_text(path.read_text().replace('"verdict": "inconclusive"', '"verdict": "resilient"'))
        os.utime(path, (to_come, to_come))
    assert content(Path("run")) != before
    done = in_processes(small, "run", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert content(Path("run")) == before


class Threads(ThreadPoolExecutor):
    """Stands for processes, so that a test can see into them."""

    def __init__(self, workers: int, **_: Any) -> None:
        super().__init__(workers)

    def shutdown(self, wait: bool = True, kill_workers: bool = False) -> None:
        super().shutdown(wait)


FAULTS = {
    "no memory": (MemoryError("of a test"), "a worker lacks memory (MemoryError: of a test); 2 groups"),
    "none for torch": (RuntimeError("can't allocate memory: you tried"), "a worker lacks memory"),
    "lost": (BrokenProcessPool(), "a worker was lost; 2 groups"),
}


def test_workers_share_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[int | None] = []
    monkeypatch.setattr(processes, "ProcessPoolExecutor", Threads)
    for name, free in (("_workers", 1), ("_available", lambda: 6000), ("_left_in_group", lambda: None)):
        monkeypatch.setattr(limits, name, free)
    monkeypatch.setattr(limits, "_left_of_addresses", lambda: None)
    monkeypatch.setattr(Unit, "make", lambda *_: found.append(limits.free_memory()))
    units = [Unit(name, (cell_settings(dataset="digits"),)) for name in ("one", "two")]
    for jobs in (1, 2, 6):
        processes.in_processes(Job(tmp_path, tmp_path), units, jobs)
    assert found == [6000, 6000, 3000, 3000, 3000, 3000]  # no more workers than units


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_lost_is_made_again_with_fewer_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    error, said = FAULTS[fault]
    chunks: list[int] = []

    def make(job: Job, unit: Unit) -> None:
        chunks.append(job.chunk)
        if job.chunk > 32 and unit.name != "easy":
            raise error

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Threads)
    monkeypatch.setattr(processes, "make", make)
    cell = cell_settings(dataset="digits")
    units = [Unit(name, (cell,)) for name in ("easy", "large", "larger")]
    processes.in_processes(Job(Path(), Path(), chunk=128), units, 2)
    assert sorted(chunks) == [32, 32, 64, 64, 128, 128, 128]
    assert said in caplog.text
    with pytest.raises(UsageError, match="4 times; lower --jobs or --chunk"):
        processes.in_processes(Job(Path(), Path(), chunk=100_000), units, 2)


def test_a_fault_of_another_kind_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(job: Job, unit: Unit) -> None:
        raise UsageError("no such data")

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Threads)
    monkeypatch.setattr(processes, "make", make)
    with pytest.raises(UsageError, match="no such data"):
        processes.in_processes(Job(Path(), Path()), [Unit("one", (cell_settings(dataset="digits"),))], 2)


def test_who_waits_is_told_what_is_at_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "ProcessPoolExecutor", Threads)
    monkeypatch.setattr(processes, "_PATIENCE", 0.01)
    monkeypatch.setattr("harness.base.progress.FIRST", 0.0)
    monkeypatch.setattr(Unit, "make", lambda *_: time.sleep(0.1))
    units = [Unit(name, (cell_settings(dataset=name),)) for name in ("digits", "cancer", "mnist-sample")]
    processes.in_processes(Job(tmp_path, tmp_path), units, 2)
    said = "evaluating: 0 of 3 groups, at work: cpl vs none on digits; cpl vs none on cancer"
    assert capsys.readouterr().err.startswith(f"harness: {said}")
