"""``harness reproduce``: the papers' tables, ours beside theirs."""

import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.progress import within
from harness.cli.app import DONE, INVALID, app, resumable
from harness.cli.console import Screen
from harness.cli.options import numbers
from harness.cli.spreading_options import PartOption, ThreadsOption, chosen_jobs, require_one_way
from harness.datasets import data_root as find_data_root
from harness.evaluation import Run, document_of
from harness.papers import RENAMED, TABLES, Request
from harness.papers.parts import Part, make_in_processes, require_dealt
from harness.parallel.shard import Shard
from harness.parallel.units import Job
from harness.reports.cell_picture import save_cell_picture
from harness.results import RunFolder, claimed
from harness.results.environment import environment

_WIDTH = 170


@app.command("reproduce")
def reproduce_command(
    table: Annotated[str, typer.Argument(help=f"A table of the papers: one of those listed here. {', '.join(TABLES)}")],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller runs; the header says how small.")] = False,
    victims: Annotated[int | None, typer.Option(help="Victims per cell, instead of the table's own number.")] = None,
    seed: Annotated[list[str] | None, typer.Option(help="Comma-separated; seeds are pooled (0).")] = None,
    jobs: Annotated[int | None, typer.Option(help="Parallel processes for the rows (1).")] = None,
    shard: PartOption = None,
    threads: ThreadsOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    chunk: Annotated[int, typer.Option(help="Most victims attacked together; fewer if memory is short.")] = 128,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    data_root: Annotated[Path | None, typer.Option(help="Folder of datasets.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an earlier run in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Run a table of the papers and print ours beside theirs, with a verdict per cell."""
    if table in RENAMED:
        raise UsageError(f"table {table} is called {RENAMED[table]} now; use that name")
    if table not in TABLES:
        raise UsageError(f"unknown table {table!r}; choose {', '.join(TABLES)}")
    if chunk < 1:
        raise UsageError("--chunk must be at least 1")
    if victims is not None and victims < 1:
        raise UsageError("--victims must be at least 1")
    require_one_way(shard, jobs, None, None)
    where, root, folder = choose_device(device), find_data_root(data_root), RunFolder(out)
    jobs, threads = chosen_jobs(jobs, threads, lambda: 1)
    seeds = tuple(numbers(seed or ["0"], "seed"))
    asked = partial(Request, data_root=root, device=where, quick=quick, victims=victims, seeds=seeds)
    job = Job(root, out, 0.0, chunk, threads, save_cell_picture)
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
    if as_json:
        sys.stdout.write(json.dumps(comparison.document(), indent=1) + "\n")
    else:
        comparison.print(Screen(_WIDTH))
        if document.valid_reason:
            print(f"the run is invalid: {document.valid_reason}")
    return DONE if document.valid else INVALID


def _make_shard(table: str, asked: partial[Request], job: Job, shard: Shard, as_json: bool) -> int:
    require_dealt(table, "--shard")
    run, out = job.run(), shlex.quote(str(job.out))
    with resumable(), within(f"shard {shard}"):
        Part(table, asked, shard).make(run)
    if as_json:
        sys.stdout.write(json.dumps({"table": table, "shard": str(shard), "cells": list(run.done)}, indent=1) + "\n")
    else:
        print(f"shard {shard} of {table} is done in {out}")
        print(f"once all are: the same command with --resume and --out {out} instead of --shard {shard}")
    return DONE
