"""``harness train --jobs N``: the clients of a round over processes of one machine, to the same bytes as in one."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from harness.base.devices import use_threads
from harness.base.errors import UsageError
from harness.base.limits import share_memory
from harness.base.progress import hush
from harness.parallel.processes import ATTEMPTS, TENSORS, begin_workers, why_lost
from harness.training import Training, TrainSettings
from harness.training.clients import Chunk, Clients, TrainedChunk, TrainsChunks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """Trains the chunks of a run's rounds in ``jobs`` processes of ``threads`` each, which read the data themselves."""

    jobs: int
    threads: int
    data_root: Path

    @contextmanager
    def of(self, run: Training) -> Iterator[TrainsChunks]:
        """Around the rounds of a run; the processes begin with the first chunk and end here."""
        workers = _Workers(_Job(run.settings, self.data_root, run.sources, self.threads), self.jobs)
        try:
            yield workers.train
        except BaseException:
            workers.end(kill=True)
            raise
        workers.end()


@dataclass(frozen=True)
class _Job:
    """What a process makes the clients' side of a run from."""

    settings: TrainSettings
    data_root: Path
    sources: dict[str, str]
    threads: int


class _Workers:
    """Processes that are begun when they are needed, and again, half as many, when one is lost: it may lack memory."""

    def __init__(self, job: _Job, count: int) -> None:
        self._job, self._count = job, count
        self._executor: Any = None

    def train(self, chunks: Iterable[Chunk]) -> Iterator[TrainedChunk]:
        """The chunks in their order, however they are done; one more than there are processes is under way.

        Raises:
            UsageError: processes are lost again and again.
        """
        under_way: deque[tuple[Chunk, Future[TrainedChunk]]] = deque()
        for chunk in chunks:
            under_way.append((chunk, self._submit(chunk)))
            if len(under_way) > self._count:
                yield self._first(under_way)
        while under_way:
            yield self._first(under_way)

    def end(self, kill: bool = False) -> None:
        """Ends the processes, if there are any."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=kill)
            self._executor = None

    def _submit(self, chunk: Chunk) -> "Future[TrainedChunk]":
        if self._executor is None:
            begin = partial(_begin, self._job, self._count)
            self._executor = begin_workers(self._count, self._job.threads, begin, TENSORS)
        try:
            return self._executor.submit(_learn, chunk)
        except BrokenProcessPool as error:  # before this one was submitted
            lost = Future[TrainedChunk]()
            lost.set_exception(error)
            return lost

    def _first(self, under_way: deque[tuple[Chunk, "Future[TrainedChunk]"]]) -> TrainedChunk:
        problem = None
        for _ in range(ATTEMPTS):
            try:
                trained = under_way[0][1].result()
                under_way.popleft()
                return trained
            except Exception as error:
                problem = why_lost(error)
                if problem is None:
                    raise
                self._begin_again(under_way, problem)
        raise UsageError(f"{problem}, {ATTEMPTS} times; lower --jobs or --chunk, and go on with --resume")

    def _begin_again(self, under_way: deque[tuple[Chunk, "Future[TrainedChunk]"]], problem: str) -> None:
        self.end(kill=True)
        self._count = max(1, self._count // 2)
        log.warning("%s; its clients are trained again, %d at a time", problem, self._count)
        chunks = [chunk for chunk, _ in under_way]
        under_way.clear()
        under_way.extend((chunk, self._submit(chunk)) for chunk in chunks)


# What this process is to train, if it is one of several.
_own: list[_Job] = []


def _begin(job: _Job, workers: int) -> None:
    hush()
    use_threads(job.threads)
    share_memory(workers)
    _own.append(job)


def _learn(chunk: Chunk) -> TrainedChunk:
    return _clients().learn(chunk)


@cache
def _clients() -> Clients:
    """The clients' side of the run, as the process that asked for it has it.

    Raises:
        UsageError: somebody changed what it is made from.
    """
    (job,) = _own
    clients = Clients(job.settings, job.data_root)
    if clients.sources != job.sources:
        raise UsageError("a file of yours was changed while the run began; put it back, or begin again")
    return clients
