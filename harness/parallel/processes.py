"""``--jobs N``: a run over processes of one machine, which survives the loss of any of them.

``harness train --jobs N`` deals the clients of a round, and comes to the same bytes as in one process.
"""

import logging
import os
import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from loky import cpu_count
from loky.process_executor import ProcessPoolExecutor
from torch import Tensor

from harness.base.devices import use_threads
from harness.base.errors import UsageError, in_one_line, lacks_memory
from harness.base.limits import free_memory, share_memory
from harness.base.progress import Progress, hush, progress
from harness.evaluation import evaluate
from harness.experiment import CellSettings
from harness.parallel.units import Job, Task, in_good_order, make, units_of
from harness.results import ResultDocument
from harness.training import Training, TrainSettings
from harness.training.clients import Chunk, Clients, TrainedChunk, TrainsChunks

log = logging.getLogger(__name__)

ATTEMPTS = 4
_POLL_SECONDS = 1.0
#: Seconds after which somebody who waits is told what is at work.
_PATIENCE = 5.0
_GROWTH = "LOKY_MAX_MEMORY_LEAK_SIZE"
_OF_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def threads_per_job(jobs: int) -> int:
    """The cores that this process may use, dealt to the jobs; at least one each."""
    return max(1, cpu_count() // jobs)


def evaluate_in_processes(cells: list[CellSettings], job: Job, jobs: int) -> ResultDocument:
    """Evaluates cells in ``jobs`` processes; the document is that of one.

    Raises:
        UsageError: as :func:`harness.evaluation.evaluate`; or processes are lost again and again.
    """
    run = job.run()
    in_processes(job, in_good_order(units_of(cells, run), run), jobs)
    return evaluate(cells, run)


def begin_workers(
    count: int, threads: int, begin: Callable[[], None] = hush, reducers: dict[type, Any] | None = None
) -> ProcessPoolExecutor:
    """Processes that end with this one.

    Args:
        count: how many.
        threads: of each.
        begin: is called in each first.
        reducers: how values of some types travel.
    """
    # Libraries read these when they are loaded, before anything of ours runs.
    told: dict[str, str] = dict.fromkeys(_OF_LIBRARIES, str(threads))
    free = free_memory()
    if free is not None:
        # loky ends a worker that has grown by 300 MB, as all do that attack many victims: each would load torch again.
        told[_GROWTH] = str(free // (2 * count))
    places = tempfile.mkdtemp() if torch.cuda.device_count() > 1 else None
    first = (os.getpid(), begin, places)
    workers = ProcessPoolExecutor(count, env=told, initializer=_begin, initargs=first, job_reducers=reducers)
    if places is not None:
        weakref.finalize(workers, shutil.rmtree, places, ignore_errors=True)
    return workers


def _begin(parent: int, begin: Callable[[], None], places: str | None) -> None:
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    if places is not None and (count := torch.cuda.device_count()):
        torch.cuda.set_device(take_place(Path(places)) % count)
    begin()


def take_place(places: Path) -> int:
    """Return how many processes began before this one and left a file in the folder: of N GPUs each takes the next.

    Then ``cuda`` means this process's own GPU; ``cuda:1`` is that one for all of them.
    """
    place = 0
    while True:
        try:
            (places / str(place)).touch(exist_ok=False)
            return place
        except FileExistsError:
            place += 1


def _end_with(parent: int) -> None:
    """Nobody else ends the workers of a process that is killed: they would wait for ever, and keep their memory."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(0)


def why_lost(error: Exception) -> str | None:
    """Return what became of a worker, in words, where another may make the same again; None where it is to be told."""
    if lacks_memory(error):
        return f"a worker lacks memory ({in_one_line(error)})"
    return "a worker was lost" if isinstance(error, BrokenProcessPool) else None


def in_processes(job: Job, tasks: Sequence[Task], jobs: int, what: str = "evaluating", unit: str = "groups") -> None:
    """Makes tasks in ``jobs`` processes, those named first before others.

    Where a process is lost or lacks memory, what it was making is made again, with half as many rows together.

    Args:
        what: is made, and the ``unit`` in which it is counted, for a person who waits.

    Raises:
        UsageError: processes are lost again and again.
    """
    waiting, problem = list(tasks), ""
    with progress(what, len(waiting), unit) as bar:
        for attempt in range(ATTEMPTS if waiting else 0):
            smaller = replace(job, chunk=max(1, job.chunk >> attempt))
            if attempt:
                log.warning(
                    "%s; %d %s are computed again, %d rows at a time", problem, len(waiting), unit, smaller.chunk
                )
            waiting, problem = _attempt(smaller, waiting, jobs, bar)
            if not waiting:
                break
    if waiting:
        raise UsageError(f"{problem}, {ATTEMPTS} times; lower --jobs or --chunk, and go on with --resume")


def _attempt(job: Job, tasks: Sequence[Task], jobs: int, bar: Progress) -> tuple[list[Task], str]:
    """Tasks that are still to be made, and why."""
    left: list[Task] = []
    problem = ""
    job = replace(job, workers=min(jobs, len(tasks)))
    executor = begin_workers(job.workers, job.threads or threads_per_job(jobs))
    try:
        futures: dict[Future[None], Task] = {executor.submit(make, job, task): task for task in tasks}
        for future in _as_completed(futures, job.workers, bar):
            try:
                future.result()
                bar.advance(1, futures[future].words)
            except Exception as error:
                why = why_lost(error)
                if why is None:
                    raise
                problem = why
                left.append(futures[future])
    except BaseException:
        executor.shutdown(wait=True, kill_workers=True)
        raise
    executor.shutdown(wait=True)
    order = {task.name: place for place, task in enumerate(tasks)}
    return sorted(left, key=lambda task: order[task.name]), problem


def _as_completed(futures: dict[Future[None], Task], workers: int, bar: Progress) -> Iterator[Future[None]]:
    """One after another; who waits is told what is at work. Tasks begin in order."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, _PATIENCE, FIRST_COMPLETED)
        if not done:
            at_work = [task.words for future, task in futures.items() if future in pending][:workers]
            bar.under_way(0.0, f"at work: {'; '.join(at_work)}")
        yield from done


# How tensors travel between processes of one machine: torch's own pickles copy them several times, and all that they
# are views of.


def _as_array(values: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    return _tensor, (values.detach().cpu().numpy(), values.device.type)  # of GPUs whoever reads it takes its own


def _tensor(values: Any, device: str) -> Tensor:
    return torch.from_numpy(values).to(device)


#: For ``begin_workers``.
TENSORS: dict[type, Any] = {Tensor: _as_array}


@dataclass(frozen=True)
class Processes:
    """Trains the chunks of a run's rounds in ``jobs`` processes of ``threads`` each, which read the data themselves."""

    jobs: int
    threads: int
    data_root: Path

    @contextmanager
    def of(self, run: Training) -> Iterator[TrainsChunks]:
        """Yield what trains the chunks of a run's rounds. The processes begin with the first chunk and end with this
        context."""
        workers = _Workers(_Job(run.settings, self.data_root, run.sources, self.threads), self.jobs)
        try:
            yield workers.train
        except BaseException:
            workers.end(kill=True)
            raise
        workers.end()


@dataclass(frozen=True)
class _Job:
    """Values from which a process makes the clients' side of a run."""

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
            begin = partial(_begin_chunk, self._job, self._count)
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


def _begin_chunk(job: _Job, workers: int) -> None:
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
