"""``harness frontier``: how much noise is needed, and what does it cost?"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from harness.base.building import one_line, parse_assignments
from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.cli.app import DONE, INVALID, app, print_json, resumable
from harness.cli.console import display
from harness.cli.grouping import Grouped
from harness.cli.options import (
    AssignmentsOption,
    ChunkOption,
    DataRootOption,
    DeviceOption,
    OutOption,
    PartOption,
    ResumeOption,
    ThreadsOption,
    chosen_jobs,
    numbers,
    options_of,
    require_one_way,
    split_lists,
    with_output,
    with_pictures_as,
    with_tracking,
)
from harness.datasets import data_root as find_data_root
from harness.datasets import dataset_name
from harness.defenses import DEFENSES
from harness.evaluation import Run
from harness.experiment import taps_of
from harness.parallel.units import Job, Shard
from harness.reports.noise_ladders import print_frontier, save_frontier
from harness.results import RunFolder, claimed, write_atomic
from harness.study import FrontierSettings, make_frontier, make_frontier_shard, usual
from harness.study.climb import BITS, Grid, noise_setting
from harness.study.runner import Request

_WIDTH = 158
Names = Annotated[list[str] | None, typer.Option(help="Comma-separated or repeated.")]


@app.command("frontier", cls=Grouped)
@with_output
@with_pictures_as
@with_tracking("frontier")
@options_of(FrontierSettings, list(FrontierSettings.model_fields))
def frontier_command(
    dataset: Names = None,
    defense: Names = None,
    defense_arg: AssignmentsOption = None,
    sigma: Annotated[list[str] | None, typer.Option(help="Noise levels, comma-separated.")] = None,
    bits: Annotated[
        list[str] | None, typer.Option(help="Bits per sent number, instead of noise (quantization).")
    ] = None,
    surface: Annotated[list[str] | None, typer.Option(help="0 server, 1 update, 2 local step (0).")] = None,
    tap: Annotated[list[str] | None, typer.Option(help="A tap instead of a surface.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Attacks instead of the suite auto.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Use more datasets, defenses, levels and taps; takes hours.")
    ] = False,
    # Which cells there are is known after the trainings, so that no number suits by itself.
    jobs: Annotated[int | None, typer.Option(help="Parallel processes for the cells (1).")] = None,
    shard: PartOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    chunk: ChunkOption = 128,
    out: OutOption = Path("frontier"),
    data_root: DataRootOption = None,
    resume: ResumeOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document and nothing else.")] = False,
    **chosen: Any,
) -> int:
    """Measure how much noise is needed and its cost: accuracy, proven epsilon and leakage per noise level."""
    try:
        settings = FrontierSettings(**chosen)
    except ValidationError as error:
        raise UsageError(one_line(error)) from error
    if bits and sigma:
        raise UsageError("--bits and --sigma are levels of one thing; drop one of them")
    grid = _grid(
        usual(full), dataset, defense or (["quantization"] if bits else None), defense_arg, bits or sigma, attack
    )
    _require_bits(grid, bool(bits))
    if surface or tap:
        grid = replace(grid, taps=tuple(taps_of(numbers(surface or [], "surface"), split_lists(tap or []))))
    where, root = choose_device(device), find_data_root(data_root)
    require_one_way(shard, jobs, None, None)
    jobs, threads = chosen_jobs(jobs, threads, lambda: 1)
    job = Job(root, out, 0.0, chunk, threads)
    if shard:
        return _make_shard(settings, grid, Request(job.run(), root, where, seeds=(settings.seed,)), shard, as_json)
    with resumable(), claimed(out, None if resume else "frontier.json"):
        if not resume:
            job = replace(job, since=RunFolder(out).anew().since)
        run = job.run() if jobs > 1 else Run(root, RunFolder(out), chunk, resume)
        request = Request(run, root, where, seeds=(settings.seed,))
        document = make_frontier(settings, grid, request, job, jobs, resume)
        write_atomic(out / "frontier.json", document.model_dump_json(indent=1).encode())
        save_frontier(out / "frontier.png", document)
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        display(lambda console: print_frontier(document, console), _WIDTH)
        print(f"Files: {out} (frontier.json, frontier.png, results.json, trained)")
    return DONE if document.valid else INVALID


def _make_shard(settings: FrontierSettings, grid: Grid, request: Request, shard: str, as_json: bool) -> int:
    part, out = Shard.parse(shard), shlex.quote(str(request.run.folder.path))
    with resumable():
        points = make_frontier_shard(settings, grid, request, part)
    if as_json:
        print_json([point.model_dump(mode="json") for point in points])
    else:
        print(f"shard {part} is done: {plural(len(points), 'point')} in {out}")
        print(f"once all are: the same command with --resume and --out {out} instead of --shard {part}")
    return DONE


def _grid(
    grid: Grid, dataset: list[str] | None, defense: list[str] | None, defense_arg: list[str] | None,
    sigma: list[str] | None, attack: list[str] | None,
) -> Grid:  # fmt: skip
    """Return what is usual, but for what is named."""
    if dataset:
        grid = replace(grid, datasets=tuple(dict.fromkeys(dataset_name(name) for name in split_lists(dataset))))
    if defense or defense_arg:
        usually = dict(grid.defenses)
        names = [DEFENSES.resolve(name) for name in split_lists(defense)] if defense else list(usually)
        given = parse_assignments(defense_arg or [], names, DEFENSES)
        grid = replace(grid, defenses=tuple((name, usually.get(name, {}) | given[name]) for name in names))
    if sigma:
        grid = replace(grid, levels=tuple(sorted({_level(value) for value in split_lists(sigma)})))
    if attack:
        grid = replace(grid, attacks=tuple(split_lists(attack)))
    chosen = {"--dataset": grid.datasets, "--defense": grid.defenses, "--sigma": grid.levels, "--attack": grid.attacks}
    for option in [option for option, values in chosen.items() if not values]:
        raise UsageError(f"{option} names nothing; leave it out, or name some, separated by commas")
    return grid


def _require_bits(grid: Grid, named: bool) -> None:
    """Levels are of noise or of bits, whichever every defense goes by. Raises UsageError."""
    for name, _ in grid.defenses:
        if (noise_setting(name).rpartition(".")[2] == BITS) != named:
            fix = "name bits with --bits 2,4,8" if not named else "drop --bits, or name quantization"
            raise UsageError(f"levels of {name} are {'noise' if named else 'bits'}; {fix}")
    if named and not all(level == int(level) and level >= 2 for level in grid.levels):
        raise UsageError("--bits takes whole numbers from 2 on, separated by commas")


def _level(value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise UsageError(f"--sigma takes numbers separated by commas, got {value!r}") from error
