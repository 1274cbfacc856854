"""``harness reproduce``: the papers' tables, ours beside theirs."""

import shlex
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.progress import within
from harness.cli.app import DONE, INVALID, app, print_json, resumable
from harness.cli.console import tell
from harness.cli.options import (
    ChunkOption,
    DataRootOption,
    DeviceOption,
    JsonOption,
    OutOption,
    PartOption,
    PooledSeedOption,
    ResumeOption,
    RowJobsOption,
    ThreadsOption,
    chosen_jobs,
    numbers,
    require_one_way,
    with_output,
    with_pictures_as,
)
from harness.cli.sketch import among
from harness.datasets import data_root as find_data_root
from harness.evaluation import Run, document_of
from harness.papers import RENAMED, TABLES, UNDEALT, Request
from harness.parallel.processes import in_processes
from harness.parallel.units import Job, Shard
from harness.reports.cell_picture import save_cell_picture
from harness.reports.pictures import as_chosen
from harness.results import RunFolder, claimed
from harness.results.environment import environment
from harness.study.runner import ShardDone

_WIDTH = 170
# So that a process whose parts were quick takes over some of another's.
_PARTS_PER_JOB = 8


@app.command("reproduce")
@with_output
@with_pictures_as
def reproduce_command(
    table: Annotated[
        str,
        typer.Argument(
            help=f"A table of the papers: one of those listed here. {', '.join(TABLES)}",
            autocompletion=among(list(TABLES)),
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller runs; the header says how small.")] = False,
    victims: Annotated[int | None, typer.Option(help="Victims per cell, instead of the table's own number.")] = None,
    seed: PooledSeedOption = None,
    jobs: RowJobsOption = None,
    shard: PartOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    chunk: ChunkOption = 128,
    out: OutOption = Path("runs"),
    data_root: DataRootOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run a table of the papers and print ours beside theirs, with a verdict per cell."""
    if table in RENAMED:
        raise UsageError(f"table {table} is called {RENAMED[table]} now; use that name")
    if table not in TABLES:
        raise UsageError(f"unknown table {table!r}; choose {', '.join(TABLES)}")
    if victims is not None and victims < 1:
        raise UsageError("--victims must be at least 1")
    require_one_way(shard, jobs, None, None)
    where, root, folder = choose_device(device), find_data_root(data_root), RunFolder(out)
    jobs, threads = chosen_jobs(jobs, threads, lambda: 1)
    seeds = tuple(numbers(seed or ["0"], "seed"))
    asked = partial(Request, data_root=root, device=where, quick=quick, victims=victims, seeds=seeds)
    job = Job(root, out, 0.0, chunk, threads, as_chosen(save_cell_picture))
    if shard:
        return _make_shard(table, asked, job, Shard.parse(shard), as_json)
    with resumable(), claimed(out, None if resume else "results.json"), within():
        run = Run(root, folder, chunk, resume, partial(save_cell_picture, folder))
        if jobs > 1:
            require_dealt(table, "--jobs")
            job = job if resume else replace(job, since=folder.anew().since)
            make_in_processes(table, asked, job, jobs)
            run = job.run()
        comparison = TABLES[table](asked(run=run))
        made = list(run.done.values())
        document = document_of([stored.cell for stored in made], environment(where))
        folder.write_results(document, [record for stored in made for record in stored.victims])
    tell(comparison.document(), as_json, comparison.print, _WIDTH)
    if document.valid_reason and not as_json:
        print(f"the run is invalid: {document.valid_reason}")
    return DONE if document.valid else INVALID


def _make_shard(table: str, asked: partial[Request], job: Job, shard: Shard, as_json: bool) -> int:
    require_dealt(table, "--shard")
    run, out = job.run(), shlex.quote(str(job.out))
    with resumable(), within(f"shard {shard}"):
        Part(table, asked, shard).make(run)
    if as_json:
        print_json({"table": table, "shard": str(shard), "cells": list(run.done)})
    else:
        print(f"shard {shard} of {table} is done in {out}")
        print(f"once all are: the same command with --resume and --out {out} instead of --shard {shard}")
    return DONE


@dataclass(frozen=True)
class Part:
    """A shard of a table, which a worker makes in the folder that all share; ``asked`` lacks the run and the shard."""

    table: str
    asked: partial[Request]
    shard: Shard

    @property
    def name(self) -> str:
        """Name of the shard."""
        return str(self.shard)

    @property
    def words(self) -> str:
        """Return what it is, for a person who waits."""
        return f"{self.table} {self.shard}"

    def make(self, run: Run) -> None:
        """Makes the cells and trainings of its rows, or finds them made."""
        try:
            TABLES[self.table](self.asked(run=run, shard=self.shard))
        except ShardDone:
            return
        raise AssertionError(f"{self.table} went on without what the other shards make")


def require_dealt(table: str, option: str) -> None:
    """Raises UsageError: it is made by one process."""
    if table in UNDEALT:
        raise UsageError(f"{table} has no parts for {option}: {UNDEALT[table]}; leave {option} out")


def make_in_processes(table: str, asked: partial[Request], job: Job, jobs: int) -> None:
    """Makes all that a table needs in ``jobs`` processes; the same request without a shard then finds it.

    Raises:
        UsageError: as the table itself; or processes are lost again and again.
    """
    count = jobs * _PARTS_PER_JOB
    parts = [Part(table, asked, Shard(index, count)) for index in range(1, count + 1)]
    in_processes(job, parts, jobs, "parts of the table", "parts")
