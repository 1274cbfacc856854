"""``harness evaluate``: attack clients under a defense and say what leaks.

Options, presets and configuration files become cells here. Names, types, defaults and help of options stand in
:class:`harness.experiment.CellSettings`.
"""

import difflib
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.attacks import ATTACKS, SUITES, suites
from harness.base.building import parse_assignments
from harness.base.devices import choose_device
from harness.base.errors import UsageError, as_setting, as_written, in_one_line
from harness.base.kinds import plural
from harness.cli.app import DONE, INVALID, app, resumable
from harness.cli.console import display
from harness.cli.grouping import Grouped
from harness.cli.options import (
    AdapterRankOption,
    AllMembersOption,
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
    TrainOnlyOption,
    chosen_jobs,
    numbers,
    options_of,
    require_one_way,
    split_lists,
    with_output,
    with_pictures_as,
    with_tracking,
    without,
)
from harness.datasets import data_root as find_data_root
from harness.datasets import dataset_name, default_model
from harness.defenses import DEFENSES
from harness.evaluation import Run, evaluate
from harness.evaluation.observe import Stage
from harness.experiment import (
    FILE_SETTINGS,
    LISTED_SETTINGS,
    OPTIONS,
    CellSettings,
    check_adversary,
    expand,
    taps_of,
    usual_prior,
)
from harness.federation.memory import read_state
from harness.models.adapters import trained_only
from harness.parallel.clusters import device_there, evaluate_on_cluster
from harness.parallel.plan import make_shard
from harness.parallel.processes import evaluate_in_processes
from harness.parallel.units import Job, Shard
from harness.parallel.worker_pool import is_one_group, most_workers, suitable_jobs, worker_pool
from harness.presets import PRESETS
from harness.reports.cell_picture import save_cell_picture
from harness.reports.pictures import as_chosen
from harness.reports.success_curves import save_curves
from harness.reports.table import print_results
from harness.results import ResultDocument, RunFolder, claimed
from harness.results.files import MOST_OF_A_DOCUMENT, Unreadable, read_bytes, sha256
from harness.training import kept_model, kept_server_state, kept_variates, trained_run, training_options

# Options that are settings of a cell under the same name, and have one value.
_PASSED_ON = tuple(name for name in OPTIONS if name not in (*LISTED_SETTINGS, *FILE_SETTINGS))
# Options that name a file or a folder.
_PATHS = ("training", *FILE_SETTINGS)
# Options that take a list, each with what it is unless given.
_LISTS: dict[str, list[str]] = {
    "dataset": [CellSettings.model_fields["dataset"].default], "model": [], "defense": [],
    "attack": [CellSettings.model_fields["attack"].default], "surface": [], "tap": [],
    **{name: [str(CellSettings.model_fields[name].default)] for name in LISTED_SETTINGS},
    "seed": ["0"], "defense_arg": [], "attack_arg": [],
}  # fmt: skip


def merge(given: dict[str, Any], preset: str | None, config: Path | None) -> list[dict[str, Any]]:
    """Options given on the command line over a preset's or configuration file's, a training run's, and the defaults.

    Returns:
        One set of options per grid; only a preset may have several.

    Raises:
        UsageError: unknown preset, unreadable file, or an option in it that does not exist.
    """
    if preset and config:
        raise UsageError("both --preset and --config were given; choose one")
    grids = _grids(preset) if preset else [_read_config(config, set(given)) if config else {}]
    return _with_prior([_over_defaults(given, chosen) for chosen in grids])


def _grids(preset: str) -> list[dict[str, Any]]:
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PRESETS)}"
        raise UsageError(f"unknown preset {preset!r}; {hint}")
    chosen = PRESETS[preset][1]
    chosen = chosen() if callable(chosen) else chosen
    return chosen if isinstance(chosen, list) else [chosen]


# What an epsilon depends on, and --training knows.
_OF_A_RUN = ("clients", "rounds", "steps_per_round", "sampling_rate")


def _over_defaults(given: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in given.items() if value not in (None, [], ())}
    folder = said.get("training") or chosen.get("training")
    trained = training_options(Path(folder)) if folder else {}
    for name in _OF_A_RUN if trained else ():
        asked = said.get(name, chosen.get(name))
        if asked is not None and str(asked) != str(trained.get(name)):
            option = name.replace("_", "-")
            raise UsageError(f"statements are about the run of --training; leave out --{option}")
    if "defense" in said or "defense" in chosen:
        # The settings of the defense it was trained under do not fit another one.
        trained.pop("defense_arg", None)
    if "surface" in said or "tap" in said:
        # One stands instead of the other, also of the other in a preset or file.
        chosen = {name: value for name, value in chosen.items() if name not in ("surface", "tap")}
    return {**dict.fromkeys(given), **_LISTS, **trained, **chosen, **said}


def _with_prior(grids: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All grids of a run with the same public data."""
    usual = usual_prior([name for options in grids for name in split_lists(options["attack"])])
    return [{**options, "prior": usual if options.get("prior") is None else options["prior"]} for options in grids]


def _read_config(path: Path, known: set[str]) -> dict[str, Any]:
    options = {name.replace("-", "_"): value for name, value in read_options(path).items()}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"{str(path)!r} has an unknown option {unknown[0]!r}; a file takes those of harness evaluate --help that "
            "say what is evaluated; give --out, --jobs, --resume and so on on the command line"
        )
    for name in _PATHS:
        if not isinstance(options.get(name, ""), str):
            option = name.replace("_", "-")
            raise UsageError(f"{str(path)!r}: {option} is no path in quotes; write it as one, and check --{option}")
    for name in _LISTS:
        if name in options:
            entries = options[name] if isinstance(options[name], list) else [options[name]]
            options[name] = [str(entry) for entry in entries]
    return options


def cells_from(options: dict[str, Any], device: str) -> list[CellSettings]:
    """Every combination of the listed options.

    Raises:
        UsageError: unknown names or settings, impossible values; one line that says how to fix it.
    """
    if not split_lists(options["defense"]):
        raise UsageError("no defense named; add --defense fed_acdp (harness list defenses shows all)")
    for name, usual in _LISTS.items():
        if not split_lists(options[name]) and (usual or options[name]):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is empty; give it a value or leave it out")
    defenses = [DEFENSES.resolve(name) for name in split_lists(options["defense"])]
    attacks = [suites.resolve(name) for name in split_lists(options["attack"])]
    defense_args = parse_assignments(list(options["defense_arg"]), defenses, DEFENSES)
    attack_args = _attack_args(list(options["attack_arg"]), attacks)
    common = {name: options[name] for name in _PASSED_ON if options.get(name) is not None}
    if options.get("training"):
        common["trained"] = trained_run(Path(options["training"]))
    common |= {"device": device, "seeds": tuple(numbers(options["seed"], "seed"))}
    listed = {name: numbers(options[name], name.replace("_", "-")) for name in LISTED_SETTINGS}
    rounds = listed.pop("round")
    grid = {
        "dataset": [dataset_name(name) for name in split_lists(options["dataset"])],
        "model": _models(options),
        "defense": [(name, defense_args[name]) for name in defenses],
        "attack": [(name, attack_args[name]) for name in attacks],
        "batch_size": listed.pop("batch_size"),
        "tap": taps_of(numbers(options["surface"], "surface"), split_lists(options["tap"])),
        **listed,
        "model_at": [_model_at(options, round_index) for round_index in rounds],
    }
    cells = [_with_server_state(cell, options) for cell in expand(grid, **common)]
    check_adversary(options.get("adversary"), cells)
    if options.get("server_state") and not any(cell.server_state for cell in cells):
        raise UsageError(
            "no cell uses --server-state: it needs a --round above 0 and a defense whose bound adapts, such as "
            "quantile; add them, or leave it out"
        )
    return cells


def _models(options: dict[str, Any]) -> list[str] | list[None]:
    """The names of the networks; None for each dataset's own default."""
    names, rank = split_lists(options["model"]), options.get("adapter_rank")
    datasets = split_lists(options["dataset"])
    if not names and options.get("train_only"):
        if len(datasets) > 1:
            raise UsageError("--train-only changes one network, and each dataset has its own; name it with --model")
        names = [default_model(dataset_name(datasets[0]))]
    return trained_only(names, options.get("train_only"), rank) or [None]


def _attack_args(assignments: list[str], attacks: list[str]) -> dict[str, dict[str, str]]:
    """Settings of every named attack; a suite has none."""
    for suite in (name for name in attacks if name in SUITES):
        owners = [assignment.partition("=")[0].rpartition(".")[0] for assignment in assignments]
        if any(not owner or suites.resolve(owner) == suite for owner in owners):
            raise suites.without_settings(suite)
    named = [name for name in attacks if name not in SUITES]
    return parse_assignments(assignments, named, ATTACKS) | {name: {} for name in attacks if name in SUITES}


def _model_at(options: dict[str, Any], round_index: int) -> dict[str, Any]:
    """The settings that name the model of a training round."""
    for other in FILE_SETTINGS:
        if options.get("training") and options.get(other):
            raise UsageError(f"both --training and --{other.replace('_', '-')} were given; choose one")
    if not options.get("training"):
        named = _file("weights", options.get("weights")) | _file("variates", options.get("variates"))
        return {"round": round_index} | named
    # The model after the last round of a run is attacked in the round that would have followed.
    (planned,) = numbers([options["rounds"]], "rounds")
    folder = Path(options["training"])
    named = _file("weights", kept_model(folder, round_index)) | _file("variates", kept_variates(folder, round_index))
    return {"round": round_index, "rounds": max(planned, round_index + 1)} | named


def _with_server_state(cell: CellSettings, options: dict[str, Any]) -> CellSettings:
    """The cell with what the server remembered by its round, where its defense goes by it."""
    if options.get("training"):
        path = kept_server_state(Path(options["training"]), cell.round, cell.defense, cell.defense_args)
    else:
        path = options.get("server_state") if cell.round and cell.build_defense().adapts() else None
    if path is not None:
        # Looked at now: a state of anything else would clip, and answer, for another defense.
        read_state(Path(path), cell.build_defense().server_remembers())
    return cell.model_copy(update=_file("server_state", path))


def _file(name: str, path: str | Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return {name: str(path), f"{name}_hash": sha256(Path(path))}
    except Unreadable as problem:
        option = name.replace("_", "-")
        raise UsageError(f"{option} {str(path)!r} {problem.reason}; check --{option}") from problem


Names = Annotated[list[str] | None, typer.Option(help="Comma-separated or repeated; every combination is a cell.")]
_Adversary = Annotated[str | None, typer.Option(help="honest, or tampering: the server sends manipulated weights.")]
_Tap = Annotated[list[str] | None, typer.Option(help="A tap instead of a surface; see harness list surfaces.")]
_Training = Annotated[Path | None, typer.Option(help="Folder of a harness train run: use its model, defense and data.")]


@app.command("evaluate", cls=Grouped)
@with_output
@with_pictures_as
@with_tracking("evaluate")
@options_of(CellSettings, sorted(OPTIONS, key=FILE_SETTINGS.__contains__), several=LISTED_SETTINGS, unset=True)
def evaluate_command(
    context: typer.Context,
    defense: Names = None,
    attack: Names = None,
    adversary: _Adversary = None,
    dataset: Names = None,
    model: Names = None,
    train_only: TrainOnlyOption = None,
    adapter_rank: AdapterRankOption = None,
    surface: SurfaceOption = None,
    tap: _Tap = None,
    seed: PooledSeedOption = None,
    training: _Training = None,
    defense_arg: AssignmentsOption = None,
    attack_arg: AssignmentsOption = None,
    preset: Annotated[str | None, typer.Option(help="A named set of options; see harness list presets.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML or YAML file of these options.")] = None,
    device: DeviceOption = "auto",
    chunk: ChunkOption = 128,
    out: OutOption = Path("runs"),
    data_root: DataRootOption = None,
    resume: ResumeOption = False,
    all_members: AllMembersOption = False,
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
        "train_only": train_only, "adapter_rank": adapter_rank, "surface": surface, "tap": tap, "seed": seed,
        "training": training, "defense_arg": defense_arg, "attack_arg": attack_arg, "all_members": all_members or None,
    }  # fmt: skip
    part = Shard.parse(shard) if shard else None
    require_one_way(shard, jobs, cluster, cluster_arg)
    where = device_there(device, cluster, cluster_arg or []) if cluster else choose_device(device)
    grids = merge(given, preset, config)
    with _named_as_in(config, given):
        cells, settles = [cell for options in grids for cell in cells_from(options, where)], not _whole(grids)
    if cluster and threads is None:
        threads = 1
    # Of a shard or a cluster's tasks, processes are started by others.
    root = find_data_root(data_root)
    stage = Stage(root, chunk)
    jobs, threads = chosen_jobs(jobs, threads, lambda: 1 if part or cluster else suitable_jobs(cells, stage, settles))
    draw = as_chosen(save_cell_picture) if pictures else None
    job = Job(root, out, 0.0, chunk, threads, draw, settles=settles)
    if part:
        command = without(context.find_root().obj, ("--shard", "--out"), ("--resume", "--json"))
        with resumable():
            return _show_shard(make_shard(cells, job, part, command), part, as_json, out)
    document = _evaluated(cells, job, jobs, resume, stage, cluster, cluster_arg)
    show(document, as_json, out)
    return DONE if document.valid else INVALID


def _evaluated(
    cells: list[CellSettings], job: Job, jobs: int, resume: bool, stage: Stage, cluster: str | None,
    cluster_arg: list[str] | None,
) -> ResultDocument:  # fmt: skip
    """Evaluates the whole run into its folder: on a cluster, in processes, or cell by cell."""
    with resumable(), claimed(job.out):
        folder = RunFolder(job.out) if resume else RunFolder(job.out).anew()
        if cluster or (jobs > 1 and not is_one_group(cells, job.settles)):
            document = _spread(cells, replace(job, since=folder.since), jobs, cluster, cluster_arg)
        else:
            document = _cell_by_cell(cells, job, jobs, folder, resume, stage)
        if job.draw:
            save_curves(folder.pictures, document.cells)
    return document


def _cell_by_cell(
    cells: list[CellSettings], job: Job, jobs: int, folder: RunFolder, resume: bool, stage: Stage
) -> ResultDocument:
    """The victims of an attack are shared out to the processes."""
    draw = partial(job.draw, folder) if job.draw else None
    with worker_pool(min(jobs, most_workers(cells)), job.threads, cells) as everyone:
        engine = everyone.attack
        run = Run(job.data_root, folder, job.chunk, resume, draw, stage=stage, engine=engine, settles=job.settles)
        return evaluate(cells, run)


@contextmanager
def _named_as_in(config: Path | None, given: Mapping[str, Any]) -> Iterator[None]:
    """Tell a mistake in a configuration file by the file and the name that stands there."""
    try:
        yield
    except UsageError as error:
        names = read_options(config) if config else {}
        there = (name for name in names if given.get(as_setting(name)) in (None, [], ()))
        told = {as_setting(name): f"{name!r} in {str(config)!r}" for name in there}
        raise UsageError(as_written(str(error), told)) from error


def _whole(grids: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every member of a suite runs.

    Raises:
        UsageError: a configuration file says neither yes nor no.
    """
    said = [options["all_members"] for options in grids if options.get("all_members") is not None]
    if any(not isinstance(one, bool) for one in said):
        raise UsageError("all_members is neither true nor false; write all_members = true, and check --config")
    return any(said)


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
        print(f"shard {shard} is done: {plural(made, 'cell')} in {out}")
        print(f"once all are: harness merge {shlex.quote(str(out))} --out {shlex.quote(str(out))}")
    return DONE if document.valid else INVALID


def show(document: ResultDocument, as_json: bool, out: Path) -> None:
    """Prints a document: JSON alone on standard output, or the table."""
    if as_json:
        sys.stdout.write(document.model_dump_json(indent=1) + "\n")
    else:
        display(lambda console: print_results(document, console, out))


# --------------------------------------------------------------------------------------
# A file of options, ``--config``: TOML, or YAML 1.2 where its name ends so. Both give the same options.


_YAML = (".yaml", ".yml")
_DEEPEST = 50
_OPENS = {"SequenceStartEvent": 1, "MappingStartEvent": 1, "SequenceEndEvent": -1, "MappingEndEvent": -1}


def read_options(path: Path) -> dict[str, Any]:
    """The options by their names, as the file has them.

    Raises:
        UsageError: it cannot be read, or is not what its name says.
    """
    yaml = path.suffix.lower() in _YAML
    kind, example = ("YAML", "attack: [cpl]") if yaml else ("TOML", 'attack = ["cpl"]')
    try:
        text = read_bytes(path, MOST_OF_A_DOCUMENT).decode()
        content = _yaml(text) if yaml else tomllib.loads(text)
    except Unreadable as problem:
        raise UsageError(f"{str(path)!r} {problem.reason}; check --config") from problem
    except (ValueError, RecursionError) as error:  # of its kind, no text, of too many digits, or nested too deeply
        why = in_one_line(error).partition(": ")[2] or in_one_line(error)
        raise UsageError(f"{str(path)!r} is not {kind} ({why}); write for example {example}") from error
    return content


def _yaml(text: str) -> dict[str, Any]:
    """A mapping of YAML 1.2: ``1e-5`` is a number, ``no`` a word.

    Raises:
        ValueError: it is none; a key twice, an anchor, an alias, a tag, or a directive of another version.
    """
    from ruamel.yaml import YAML  # here, since few files are of this kind
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    depth = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += _OPENS.get(type(event).__name__, 0)
            if depth > _DEEPEST:  # before the rest is read, which would take minutes
                raise ValueError("nested too deeply")
            if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
                raise ValueError(f"line {event.start_mark.line + 1} has an anchor, an alias or a tag; write it out")
            if getattr(event, "value", None) == "<<":
                raise ValueError("it has a key << of YAML 1.1; write out what it stands for")
            if getattr(event, "version", None) not in (None, (1, 2), [1, 2]):
                raise ValueError("it says to be of another version than 1.2")
        content = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{str(error.problem).splitlines()[0]}") from None
    except (YAMLError, AssertionError, NotImplementedError) as error:
        raise ValueError(str(error) or type(error).__name__) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError("it is no list of names, each with a value")
    return content
