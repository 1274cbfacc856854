"""Clusters by their names, and what can be said of each."""

import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from loky.process_executor import ProcessPoolExecutor

from harness.base.devices import choose_device, use_threads
from harness.base.errors import UsageError, in_one_line, lacks_memory
from harness.base.limits import granted, share_memory
from harness.base.progress import hush, progress
from harness.evaluation import Run, evaluate
from harness.experiment import CellSettings
from harness.parallel.units import Job, Shard, Unit, shared_controls, undefended, units_of
from harness.results import ResultDocument, write_atomic

# How many workers of a run share a node's memory, where a cluster has placed them.
#
# Nobody says how many there are; there are at most as many as the node has room for.


def share_node(ray: ModuleType, tasks: int) -> None:
    """Within a task of Ray: shares the node's memory with those of all ``tasks`` that fit beside it."""
    own = ray.get_runtime_context()
    (node,) = (known for known in ray.nodes() if known["NodeID"] == own.get_node_id())
    taken = {name: amount for name, amount in own.get_assigned_resources().items() if amount}
    room = min((int(node["Resources"].get(name, 0) // amount) for name, amount in taken.items()), default=tasks)
    beside = max(1, min(tasks, room))
    share_memory(beside, min(beside, int(1 // taken["GPU"]) or 1) if "GPU" in taken else None)


def share_slurm_node(jobs: int) -> None:
    """Within a job: shares the node's memory with those of all ``jobs`` that fit beside it, unless it has its own."""
    if os.environ.get("SUBMITIT_EXECUTOR") == "local":  # all of them are on this machine
        share_memory(jobs)
        return
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "")
    room = (os.cpu_count() or 1) // int(cores) if cores.isdecimal() and int(cores) else 1
    share_memory(1 if granted() is not None else max(1, min(jobs, room)), on_device=1)


# `--cluster ray`: units as tasks of a Ray cluster, whose files come back to the driver; no shared disk is needed.

log = logging.getLogger(__name__)

#: Content by path below a run's folder.
Files = dict[str, bytes]

_ATTEMPTS = 4
_PATIENCE_SECONDS = 10.0
_FOLDERS = ("cells", "reconstructions", "pictures")


@dataclass(frozen=True)
class RayOptions:
    """Address of the cluster, and what a task takes of the cluster.

    ``address`` as Ray has it: ``auto`` is a cluster that runs already, ``local`` one that is started here for this run.
    ``gpus`` of each task may be a fraction.
    """

    address: str = "local"
    gpus: float = 0.0


def evaluate_on_ray(cells: list[CellSettings], job: Job, options: RayOptions) -> ResultDocument:
    """Evaluates cells on a Ray cluster; the document is that of one process.

    Raises:
        UsageError: as :func:`harness.evaluation.evaluate`; Ray is not installed, cannot be reached, was lost on the
            way, or a task fails again and again.
    """
    if find_spec("ray") is None:
        raise UsageError("--cluster ray needs Ray; pip install 'gradient-leakage-harness[ray]'")
    # Ray ends the process that talks to a cluster whose head is gone, whatever it was doing.
    with ProcessPoolExecutor(1) as driver:
        try:
            driver.submit(_drive, cells, job, options).result()
        except BrokenProcessPool as error:
            raise UsageError("the Ray cluster was lost; what came back is kept: go on with --resume") from error
    return evaluate(cells, job.run())


def _drive(cells: list[CellSettings], job: Job, options: RayOptions) -> None:
    use_threads(job.threads)
    run = job.run()
    units = [unit for unit in units_of(cells, run) if not all(map(run.at_hand, unit.cells))]
    if units:
        _make(units, job, run, options)


def _make(units: Sequence[Unit], job: Job, run: Run, options: RayOptions) -> None:
    ray = import_module("ray")
    with _connected(ray, options):
        controls = shared_controls(units, run)
        tasks = _Tasks(ray, replace(job, workers=len(controls) + len(units)), options)
        for control in controls.values():
            tasks.submit(control)
        for unit in units:
            tasks.submit(unit, [name for name in undefended(unit, run) if name in controls])
        with progress("evaluating", len(units) + len(controls), "groups") as bar:
            for unit in tasks.made():
                bar.advance(1, unit.words)


@contextmanager
def _connected(ray: ModuleType, options: RayOptions) -> Iterator[None]:
    lost = (ray.exceptions.RaySystemError, ray.exceptions.RpcError, ConnectionError)
    own = not ray.is_initialized()
    try:
        _require_reachable(options.address)
        if own:
            ray.init(address=options.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except Exception as error:  # Ray raises a dozen types for a cluster that is not there
        raise UsageError(
            f"no Ray cluster at {options.address!r} ({in_one_line(error)}); start one with ray start --head, or give "
            "its address with --cluster-arg address="
        ) from error
    try:
        yield
    except lost as error:
        raise UsageError(
            f"the Ray cluster was lost ({in_one_line(error)}); what came back is kept: go on with --resume"
        ) from error
    finally:
        if own:
            ray.shutdown()


def _require_reachable(address: str) -> None:
    """Raises OSError where nobody listens at ``host:port``, which Ray itself would wait for for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_SECONDS).close()


@dataclass
class _Tasks:
    """Units on their way: each has its reference, and how often it was tried."""

    ray: ModuleType
    job: Job
    options: RayOptions
    _waiting: dict[Any, tuple[Unit, int]] = field(default_factory=dict)
    _references: dict[str, Any] = field(default_factory=dict)

    def submit(self, unit: Unit, needs: Sequence[str] = (), attempt: int = 0) -> None:
        """``needs`` are units submitted before, whose files go to it."""
        # A lost worker or node is Ray's to replace; nothing that a task does is visible before its files are here.
        task = self.ray.remote(num_cpus=self.job.threads or 1, num_gpus=self.options.gpus, max_retries=_ATTEMPTS)
        job = replace(self.job, chunk=max(1, self.job.chunk >> attempt))
        reference = task(make_elsewhere).remote(job, unit, *(self._references[name] for name in needs))
        self._references[unit.name] = reference
        self._waiting[reference] = (unit, attempt)

    def made(self) -> Iterator[Unit]:
        """Units as their files have been written."""
        while self._waiting:
            (reference,), _ = self.ray.wait(list(self._waiting), num_returns=1)
            unit, attempt = self._waiting.pop(reference)
            try:
                files = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                self._again(unit, attempt + 1, error)
                continue
            for path, content in files.items():
                write_atomic(self.job.out / path, content)
            yield unit

    def _again(self, unit: Unit, attempt: int, error: Exception) -> None:
        """Tries a unit again that lacked memory, with half as many rows together; all else is told.

        Without the files of others: they may be what failed.
        """
        cause = getattr(error, "cause", error)  # what was raised in the task, if anything was
        short = lacks_memory(cause) or isinstance(error, self.ray.exceptions.OutOfMemoryError)
        if not short:
            raise cause
        if attempt == _ATTEMPTS:
            raise UsageError(
                f"{unit.words} lacks memory, {attempt} times; lower --chunk, and go on with --resume"
            ) from error
        log.warning("%s lacks memory; it is computed again with fewer rows at a time", unit.words)
        self.submit(unit, attempt=attempt)


def make_elsewhere(job: Job, unit: Unit, *known: Files) -> Files:
    """Makes a unit in a folder of this worker's own.

    Args:
        known: files of controls that are made already.

    Returns:
        What it made, and this worker has not returned before.
    """
    hush()
    use_threads(job.threads)
    share_node(import_module("ray"), job.workers)
    own = _workplace(job)
    for files in known:
        own.take(files)
    choose_device(unit.cells[0].device)
    unit.make(own.run)
    return own.give()


class _Workplace:
    """A worker's own folder, which it keeps from task to task, with all that it loaded."""

    def __init__(self, job: Job) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="harness-")
        self.run = replace(job, out=Path(self._folder.name), since=0.0).run()
        self._known: set[str] = set()

    def take(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            write_atomic(self.run.folder.path / path, content)
            self._known.add(path)

    def give(self) -> Files:
        """Also what a task left that failed half way."""
        place = self.run.folder.path
        made = [path for folder in _FOLDERS for path in (place / folder).glob("*") if not path.name.startswith(".")]
        fresh = {str(path.relative_to(place)): path for path in made}
        files = {name: path.read_bytes() for name, path in fresh.items() if name not in self._known}
        self._known |= files.keys()
        return files


@lru_cache(maxsize=1)
def _workplace(job: Job) -> _Workplace:
    return _Workplace(job)


# `--cluster slurm`: a run's shards as an array of jobs, by submitit, in the folder that all nodes share.

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
    """Make what belongs to a job: the shared controls that nobody makes yet, then its own cells."""
    hush()
    use_threads(job.threads)
    share_slurm_node(job.workers)
    choose_device(cells[0].device)
    run = job.run()
    units = units_of(cells, run)
    for unit in [*shard.of(list(shared_controls(units, run).values())), *shard.of(units)]:
        unit.make(run)


CLUSTERS = ("ray", "slurm")

# As submitit names them; all else that is said of a job is Slurm's own.
_GPUS = {"gpus", "gpus_per_node", "gpus_per_task", "gres"}
_OF_SUBMITIT = {"timeout_min", "mem_gb", "gpus_per_node", "cpus_per_task", "nodes", "name"}


def evaluate_on_cluster(
    cells: list[CellSettings], job: Job, jobs: int, cluster: str, assignments: Sequence[str]
) -> ResultDocument:
    """Evaluates cells on a cluster; the document is that of one process.

    Args:
        jobs: of Slurm; on Ray every unit of work is a task.
        assignments: ``key=value`` each. Ray: ``address``, ``gpus``. Slurm: what sbatch takes.

    Raises:
        UsageError: an unknown cluster or key, or a value that is no number where one belongs; and what each says.
    """
    given = _parsed(assignments)
    if cluster == "ray":
        given.setdefault("gpus", str(int(cells[0].device != "cpu")))
        return evaluate_on_ray(cells, job, _ray_options(given, jobs))
    if cluster == "slurm":
        where = given.pop("executor", "slurm")
        return evaluate_on_slurm(cells, job, jobs, where, {_named(name): _number(given[name]) for name in given})
    raise UsageError(f"unknown cluster {cluster!r}; choose {' or '.join(CLUSTERS)}")


def device_there(name: str, cluster: str, assignments: Sequence[str]) -> str:
    """The device on which a cluster's tasks compute, of which this machine may have none.

    ``auto`` is a GPU where GPUs are asked for, and a processor else. A task that finds none says so.

    Raises:
        UsageError: a device of one machine, or GPUs that are not asked for.
    """
    given = _parsed(assignments)
    if given.get("executor") == "local":
        return choose_device(name)
    asked = any(_number(given[key]) for key in given.keys() & _GPUS)
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {name} is of one machine; with --cluster use auto, cpu or cuda")
    if name == "cuda" and not asked and (cluster == "slurm" or "gpus" in given):
        key = "gpus_per_node=1" if cluster == "slurm" else "gpus=1"
        raise UsageError(f"--device cuda needs GPUs, and none are asked for; add --cluster-arg {key}")
    return "cuda" if name == "cuda" or (name == "auto" and asked) else "cpu"


def _named(name: str) -> str:
    return name if name in _OF_SUBMITIT else f"slurm_{name}"


def _parsed(assignments: Sequence[str]) -> dict[str, str]:
    for assignment in assignments:
        if "=" not in assignment:
            raise UsageError(f"--cluster-arg {assignment!r} is no key=value; write for example address=auto")
    return {name: value for name, _, value in (assignment.partition("=") for assignment in assignments)}


def _ray_options(given: dict[str, str], jobs: int) -> RayOptions:
    if jobs > 1:
        raise UsageError("--jobs has no effect on Ray, which runs as many tasks as there are cores; leave it out")
    unknown = sorted(given.keys() - {"address", "gpus"})
    if unknown:
        raise UsageError(f"--cluster-arg {unknown[0]!r} is unknown to ray; it takes address and gpus")
    gpus = _number(given["gpus"])
    if isinstance(gpus, str) or not 0 <= gpus <= 8:
        raise UsageError(f"--cluster-arg gpus must be 0 to 8, a fraction for several tasks on one, not {gpus}")
    return RayOptions(given.get("address", "local"), float(gpus))


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
