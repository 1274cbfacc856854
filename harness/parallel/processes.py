"""``--jobs N``: a run over processes of one machine, which survives the loss of any of them."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from threading import Thread
from typing import Any

import torch
from loky import cpu_count
from loky.process_executor import ProcessPoolExecutor
from torch import Tensor

from harness.base.errors import UsageError, in_one_line, lacks_memory
from harness.base.limits import free_memory
from harness.base.progress import hush, progress
from harness.evaluation import evaluate
from harness.experiment import CellSettings
from harness.parallel.units import Job, Task, in_good_order, make, units_of
from harness.results import ResultDocument

log = logging.getLogger(__name__)

ATTEMPTS = 4
_POLL_SECONDS = 1.0
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
    first = (os.getpid(), begin)
    return ProcessPoolExecutor(count, env=told, initializer=_begin, initargs=first, job_reducers=reducers)


def _begin(parent: int, begin: Callable[[], None]) -> None:
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    begin()


def _end_with(parent: int) -> None:
    """Nobody else ends the workers of a process that is killed: they would wait for ever, and keep their memory."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(0)


def why_lost(error: Exception) -> str | None:
    """What became of a worker, in words, where another may make the same again; None where it is to be told."""
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
            waiting, problem = _attempt(smaller, waiting, jobs, lambda task: bar.advance(1, task.words))
            if not waiting:
                break
    if waiting:
        raise UsageError(f"{problem}, {ATTEMPTS} times; lower --jobs or --chunk, and go on with --resume")


def _attempt(job: Job, tasks: Sequence[Task], jobs: int, made: Callable[[Task], None]) -> tuple[list[Task], str]:
    """Tasks that are still to be made, and why."""
    left: list[Task] = []
    problem = ""
    job = replace(job, workers=min(jobs, len(tasks)))
    executor = begin_workers(job.workers, job.threads or threads_per_job(jobs))
    try:
        futures: dict[Future[None], Task] = {executor.submit(make, job, task): task for task in tasks}
        for future in as_completed(futures):
            try:
                future.result()
                made(futures[future])
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


# How tensors travel between processes of one machine: torch's own pickles copy them several times, and all that they
# are views of.


def _as_array(values: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    return _tensor, (values.detach().cpu().numpy(), str(values.device))


def _tensor(values: Any, device: str) -> Tensor:
    return torch.from_numpy(values).to(device)


#: For ``begin_workers``.
TENSORS: dict[type, Any] = {Tensor: _as_array}
