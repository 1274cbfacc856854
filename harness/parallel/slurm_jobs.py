"""``--cluster slurm``: a run's shards as an array of jobs, by submitit, in the folder that all nodes share."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from harness.base.devices import use_threads
from harness.base.errors import UsageError, in_one_line, lacks_memory
from harness.base.progress import hush, progress
from harness.evaluation import evaluate
from harness.experiment import CellSettings
from harness.parallel.neighbours import share_slurm_node
from harness.parallel.shard import Shard
from harness.parallel.units import shared_controls, units_of
from harness.parallel.worker import Job
from harness.results import ResultDocument

log = logging.getLogger(__name__)

_ATTEMPTS = 4
_POLL_SECONDS = 0.5
#: Where submitit keeps what it sends and what the jobs say, below the run's folder.
_FOLDER = "slurm"


def evaluate_on_slurm(
    cells: list[CellSettings], job: Job, jobs: int, cluster: str, parameters: Mapping[str, Any]
) -> ResultDocument:
    """Evaluates cells in ``jobs`` jobs, a shard each; the document is that of one process.

    Args:
        cluster: ``slurm``, or ``local`` for processes of this machine in the place of jobs.
        parameters: of the jobs, as submitit names them: ``slurm_partition``, ``timeout_min``, ``gpus_per_node``, ...

    Raises:
        UsageError: as :func:`harness.evaluation.evaluate`; submitit is not installed, there is no Slurm here, a
            parameter is unknown, or a job fails again and again.
    """
    try:
        submitit = import_module("submitit")
    except ImportError as error:
        raise UsageError("--cluster slurm needs submitit; pip install 'gradient-leakage-harness[slurm]'") from error
    shards = [Shard(index, jobs) for index in range(1, jobs + 1)]
    with progress("jobs", jobs) as bar:
        for attempt in range(_ATTEMPTS):
            smaller = replace(job, chunk=max(1, job.chunk >> attempt), workers=len(shards))
            shards, problem = _attempt(submitit, cells, smaller, shards, cluster, parameters, bar.advance)
            if not shards:
                return evaluate(cells, job.run())
            log.warning("%s; %d jobs are sent again, with %d rows at a time", problem, len(shards), smaller.chunk // 2)
    raise UsageError(f"{problem}, {_ATTEMPTS} times; see {job.out / _FOLDER}, lower --chunk, and go on with --resume")


def _attempt(
    submitit: ModuleType, cells: list[CellSettings], job: Job, shards: Sequence[Shard], cluster: str,
    parameters: Mapping[str, Any], advance: Any,
) -> tuple[list[Shard], str]:  # fmt: skip
    """Shards that are still to be made, and why."""
    try:
        executor = submitit.AutoExecutor(folder=job.out / _FOLDER, cluster=cluster)
        executor.update_parameters(**parameters)
        sent = executor.map_array(make_part, *zip(*((cells, job, shard) for shard in shards), strict=True))
    except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
        raise UsageError(f"no jobs could be sent ({in_one_line(error)}); check --cluster-arg and Slurm here") from error
    waiting, left, problem = dict(zip(sent, shards, strict=True)), list[Shard](), ""
    while waiting:
        for one in [one for one in waiting if one.done()]:
            shard, error = waiting.pop(one), one.exception()
            if error is None:
                advance(1)
            elif isinstance(error, UsageError):
                raise error
            else:
                left.append(shard)
                why = "lacks memory" if lacks_memory(error) else "was lost"
                problem = f"the job of shard {shard} {why}"
        time.sleep(_POLL_SECONDS if waiting else 0)
    return left, problem


def make_part(cells: list[CellSettings], job: Job, shard: Shard) -> None:
    """What a job does: the shared controls that nobody makes yet, then its own cells."""
    hush()
    use_threads(job.threads)
    share_slurm_node(job.workers)
    run = job.run()
    units = units_of(cells, run)
    for unit in [*shard.of(list(shared_controls(units, run).values())), *shard.of(units)]:
        unit.make(run)
