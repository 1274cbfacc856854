"""What a worker does, wherever it is: makes units in a folder, with what it loaded for earlier ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from harness.base.devices import use_threads
from harness.base.limits import share_memory
from harness.evaluation.run import Run
from harness.evaluation.scored import Scored
from harness.results import CellResult, RunFolder

#: Draws a cell into a folder.
Draw = Callable[[RunFolder, Scored, CellResult], None]


class Task(Protocol):
    """What one worker makes at a time, as :class:`harness.parallel.units.Unit`."""

    @property
    def name(self) -> str:
        """No other task has it."""
        ...

    @property
    def words(self) -> str:
        """What it is, for a person who waits."""
        ...

    def make(self, run: Run) -> None:
        """Makes it in the run's folder, or finds it made."""
        ...


@dataclass(frozen=True)
class Job:
    """What every unit of a run is made with.

    Attributes:
        data_root: where datasets and LPIPS weights lie.
        out: the run's folder.
        since: what stood in it before that is another run's (:class:`harness.results.RunFolder`).
        chunk: rows attacked together.
        threads: that each worker computes with; None leaves it to torch.
        draw: makes a picture of every new cell.
        workers: that share the memory of one machine; on a cluster as many may be on one node, or fewer.
    """

    data_root: Path
    out: Path
    since: float = 0.0
    chunk: int = 128
    threads: int | None = None
    draw: Draw | None = None
    workers: int = 1

    def run(self) -> Run:
        """A run that shares its folder with others, and takes what they made."""
        folder = RunFolder(self.out, self.since, shared=True)
        draw = partial(self.draw, folder) if self.draw else None
        return Run(self.data_root, folder, self.chunk, resume=True, draw=draw)


def make(job: Job, task: Task) -> None:
    """Makes a task in this process."""
    use_threads(job.threads)
    share_memory(job.workers)
    task.make(_run(job))


@lru_cache(maxsize=1)
def _run(job: Job) -> Run:
    return job.run()
