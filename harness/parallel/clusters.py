"""Clusters by their names, and what can be said of each."""

from collections.abc import Sequence

from harness.base.errors import UsageError
from harness.experiment import CellSettings
from harness.parallel.ray_tasks import RayOptions, evaluate_on_ray
from harness.parallel.slurm_jobs import evaluate_on_slurm
from harness.parallel.worker import Job
from harness.results import ResultDocument

CLUSTERS = ("ray", "slurm")

# As submitit names them; all else that is said of a job is Slurm's own.
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
        return evaluate_on_ray(cells, job, _ray_options(given, jobs))
    if cluster == "slurm":
        where = given.pop("executor", "slurm")
        return evaluate_on_slurm(cells, job, jobs, where, {_named(name): _number(given[name]) for name in given})
    raise UsageError(f"unknown cluster {cluster!r}; choose {' or '.join(CLUSTERS)}")


def _named(name: str) -> str:
    return name if name in _OF_SUBMITIT else f"slurm_{name}"


def _parsed(assignments: Sequence[str]) -> dict[str, str]:
    for assignment in assignments:
        if "=" not in assignment:
            raise UsageError(f"--cluster-arg {assignment!r} is no key=value; write for example address=auto")
    return {name: value for name, _, value in (assignment.partition("=") for assignment in assignments)}


def _ray_options(given: dict[str, str], jobs: int) -> RayOptions:
    if jobs > 1:
        raise UsageError("--jobs says nothing to Ray, which runs as many tasks as there are cores; leave it out")
    unknown = sorted(given.keys() - {"address", "gpus"})
    if unknown:
        raise UsageError(f"--cluster-arg {unknown[0]!r} is unknown to ray; it takes address and gpus")
    gpus = _number(given.get("gpus", "0"))
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
