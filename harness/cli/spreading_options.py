"""The options by which a run spreads: parts of it, processes, threads."""

from collections.abc import Sequence
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.settings.devices import use_threads
from harness.spreading.processes import threads_per_job

_MOST_JOBS = 1024

ShardOption = Annotated[
    str | None, typer.Option(metavar="I/N", help="Make this part of the cells only; harness merge makes the whole.")
]
JobsOption = Annotated[int, typer.Option(help="Processes that share the cells out among themselves.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(help="Threads per process; may change last bits (cores dealt to the jobs; 1 on a cluster)."),
]

ClusterOption = Annotated[
    str | None, typer.Option(help="ray or slurm: make the cells on a cluster (extras of these names).")
]
ClusterArgs = Annotated[
    list[str] | None, typer.Option(help="key=value, repeated: ray's address, gpus; what sbatch takes.")
]


def chosen_threads(jobs: int, threads: int | None, shard: str | None = None, cluster: str | None = None) -> int | None:
    """Threads of each process, which this one takes too; None leaves it to torch.

    Raises:
        UsageError: a number out of range, or options that exclude each other.
    """
    if not 1 <= jobs <= _MOST_JOBS:
        raise UsageError(f"--jobs must be 1 to {_MOST_JOBS}, not {jobs}")
    if shard and jobs > 1:
        raise UsageError("--shard and --jobs were both given; start one shard per process, or take --jobs alone")
    if shard and cluster:
        raise UsageError("--shard and --cluster were both given; choose one")
    if threads is not None:
        own = threads
    elif cluster:
        own = 1
    else:
        own = threads_per_job(jobs) if jobs > 1 else None
    use_threads(own)
    return own


def without(arguments: Sequence[str], options: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command's arguments without some of its options, each of which takes a value, and without some flags."""
    kept: list[str] = []
    value_of_one = False
    for argument in arguments:
        if not value_of_one and argument not in flags and argument.partition("=")[0] not in options:
            kept.append(argument)
        value_of_one = not value_of_one and argument in options
    return kept
