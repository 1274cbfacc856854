"""The options by which a run spreads: parts of it, processes, threads."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from harness.base.devices import use_threads
from harness.base.errors import UsageError
from harness.parallel.processes import threads_per_job

_MOST_JOBS = 1024

ShardOption = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Compute this part of the cells only; harness merge combines the parts."),
]
PartOption = Annotated[
    str | None, typer.Option(metavar="I/N", help="Compute this part only; --resume instead of it combines the parts.")
]
JobsOption = Annotated[
    int | None,
    typer.Option(help="Parallel processes for the cells, or for an attack's victims (one per core if faster)."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(help="Threads per process; may change last bits (cores divided by jobs; 1 on a cluster)."),
]

ClusterOption = Annotated[
    str | None, typer.Option(help="ray or slurm: compute the cells on a cluster (extras of these names).")
]
ClusterArgs = Annotated[
    list[str] | None, typer.Option(help="key=value, repeated: ray's address, gpus; options of sbatch.")
]


def chosen_jobs(
    jobs: int | None, threads: int | None, suitable: Callable[[], int], most: int = _MOST_JOBS
) -> tuple[int, int | None]:
    """Processes, and the threads of each, which this one takes too; None leaves threads to torch.

    Args:
        jobs: as asked for. suitable: how many suit the work, where neither this nor ``threads`` is given.
        most: that have anything to do; what is asked for beyond is not started.

    Raises:
        UsageError: a number out of range.
    """
    if jobs is None:
        jobs = suitable() if threads is None else 1
    if not 1 <= jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs must be 1 to {_MOST_JOBS}, not {jobs}")
    jobs = min(jobs, most)
    own = threads_per_job(jobs) if threads is None and jobs > 1 else threads
    use_threads(own)
    return jobs, own


def require_one_way(
    shard: str | None, jobs: int | None, cluster: str | None, cluster_arg: Sequence[str] | None
) -> None:
    """Raises UsageError: options that exclude each other."""
    if shard and jobs is not None and jobs > 1:
        raise UsageError("--shard and --jobs were both given; start one shard per process, or take --jobs alone")
    if shard and cluster:
        raise UsageError("--shard and --cluster were both given; choose one")
    if cluster_arg and not cluster:
        raise UsageError("--cluster-arg says something of a cluster; name it with --cluster ray or --cluster slurm")


def without(arguments: Sequence[str], options: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command's arguments without some of its options, each of which takes a value, and without some flags."""
    kept: list[str] = []
    value_of_one = False
    for argument in arguments:
        if not value_of_one and argument not in flags and argument.partition("=")[0] not in options:
            kept.append(argument)
        value_of_one = not value_of_one and argument in options
    return kept
