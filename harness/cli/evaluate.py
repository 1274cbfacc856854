"""``harness evaluate``: attack clients under a defense and say what leaks."""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.base.devices import choose_device
from harness.cli.app import DONE, INVALID, app, resumable
from harness.cli.cells import cells_from, merge
from harness.cli.console import Screen
from harness.cli.options import (
    AssignmentsOption,
    ChunkOption,
    ClusterArgs,
    ClusterOption,
    DataRootOption,
    DeviceOption,
    JobsOption,
    OutOption,
    PooledSeedOption,
    ResumeOption,
    ShardOption,
    SurfaceOption,
    ThreadsOption,
    chosen_jobs,
    options_of,
    require_one_way,
    without,
)
from harness.datasets import data_root as find_data_root
from harness.evaluation import Run, evaluate
from harness.evaluation.observe import Stage
from harness.experiment import FILE_SETTINGS, LISTED_SETTINGS, OPTIONS, CellSettings
from harness.parallel.choosing import is_one_group, largest_crew, suitable_jobs
from harness.parallel.clusters import evaluate_on_cluster
from harness.parallel.crew import crew
from harness.parallel.plan import make_shard
from harness.parallel.processes import evaluate_in_processes
from harness.parallel.shard import Shard
from harness.parallel.units import Job
from harness.reports.cell_picture import save_cell_picture
from harness.reports.success_curves import save_curves
from harness.reports.table import print_results
from harness.results import ResultDocument, RunFolder, claimed

Names = Annotated[list[str] | None, typer.Option(help="Comma-separated or repeated; every combination is a cell.")]


@app.command("evaluate")
@options_of(CellSettings, sorted(OPTIONS, key=FILE_SETTINGS.__contains__), several=LISTED_SETTINGS, unset=True)
def evaluate_command(
    context: typer.Context,
    defense: Names = None,
    attack: Names = None,
    adversary: Annotated[
        str | None, typer.Option(help="honest, or tampering: the server sends weights of its own making.")
    ] = None,
    dataset: Names = None,
    model: Names = None,
    surface: SurfaceOption = None,
    tap: Annotated[
        list[str] | None, typer.Option(help="A tap instead of a surface; see harness list surfaces.")
    ] = None,
    seed: PooledSeedOption = None,
    training: Annotated[
        Path | None, typer.Option(help="Folder of a harness train run: its model, defense, data.")
    ] = None,
    defense_arg: AssignmentsOption = None,
    attack_arg: AssignmentsOption = None,
    preset: Annotated[str | None, typer.Option(help="A named set of options; see harness list presets.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of these options.")] = None,
    device: DeviceOption = "auto",
    chunk: ChunkOption = 128,
    out: OutOption = Path("runs"),
    data_root: DataRootOption = None,
    resume: ResumeOption = False,
    pictures: Annotated[bool, typer.Option(help="Draw a grid of reconstructions per cell.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result document and nothing else.")] = False,
    shard: ShardOption = None,
    jobs: JobsOption = None,
    threads: ThreadsOption = None,
    cluster: ClusterOption = None,
    cluster_arg: ClusterArgs = None,
    **settings: Any,
) -> int:
    """Attack clients that train under a defense, at every surface, and report what leaks."""
    given = settings | {
        "defense": defense, "attack": attack, "adversary": adversary, "dataset": dataset, "model": model,
        "surface": surface, "tap": tap, "seed": seed, "training": training, "defense_arg": defense_arg,
        "attack_arg": attack_arg,
    }  # fmt: skip
    where, part = choose_device(device), Shard.parse(shard) if shard else None
    require_one_way(shard, jobs, cluster, cluster_arg)
    cells = [cell for options in merge(given, preset, config) for cell in cells_from(options, where)]
    if cluster and threads is None:
        threads = 1
    # Of a shard or a cluster's tasks, processes are started by others.
    root = find_data_root(data_root)
    stage = Stage(root, chunk)
    jobs, threads = chosen_jobs(jobs, threads, lambda: 1 if part or cluster else suitable_jobs(cells, stage))
    draw = save_cell_picture if pictures else None
    job = Job(root, out, 0.0, chunk, threads, draw)
    if part:
        command = without(context.find_root().obj, ("--shard", "--out"), ("--resume", "--json"))
        with resumable():
            return _show_shard(make_shard(cells, job, part, command), part, as_json, out)
    with resumable(), claimed(out):
        folder = RunFolder(out) if resume else RunFolder(out).anew()
        if cluster or (jobs > 1 and not is_one_group(cells)):
            document = _spread(cells, replace(job, since=folder.since), jobs, cluster, cluster_arg)
        else:
            own_draw = partial(draw, folder) if draw else None
            with crew(min(jobs, largest_crew(cells)), threads, cells) as everyone:
                document = evaluate(
                    cells, Run(root, folder, chunk, resume, own_draw, stage=stage, engine=everyone.attack)
                )
        if pictures:
            save_curves(folder.pictures, document.cells)
    show(document, as_json, out)
    return DONE if document.valid else INVALID


def _spread(
    cells: list[CellSettings], job: Job, jobs: int, cluster: str | None, cluster_arg: list[str] | None
) -> ResultDocument:
    if cluster:
        return evaluate_on_cluster(cells, job, jobs, cluster, cluster_arg or [])
    return evaluate_in_processes(cells, job, jobs)


def _show_shard(document: ResultDocument, shard: Shard, as_json: bool, out: Path) -> int:
    """A verdict is the whole run's; this one says that its part is done."""
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        made = sum(cell.role == "cell" for cell in document.cells)
        print(f"shard {shard} is done: {made} cells in {out}")
        print(f"once all are: harness merge {shlex.quote(str(out))} --out {shlex.quote(str(out))}")
    return DONE if document.valid else INVALID


def show(document: ResultDocument, as_json: bool, out: Path) -> None:
    """Prints a document: JSON alone on standard output, or the table."""
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        print_results(document, Screen(), out)
