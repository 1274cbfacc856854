"""The options of commands: those that several share, and those that a list of settings makes.

Nothing heavy is imported before a command needs it: commands that compute nothing read this file too.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from harness.base.errors import UsageError
from harness.cli.sketch import among

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from harness.cli.console import Printed

Command = Callable[..., int]

_MOST_JOBS = 1024
_LONGEST_LINE = 300
#: Characters of an entry above which its column is as wide as one of sentences, and of long ones.
_WIDE, _LONG = 40, 160


def at_least_one(option: typer.CallbackParam, value: int) -> int:
    """Return an option's number. Raises UsageError below 1."""
    if value < 1:
        raise UsageError(f"{option.opts[0]} must be at least 1")
    return value


AssignmentsOption = Annotated[list[str] | None, typer.Option(help="[NAME.]key=value, repeated.")]
SurfaceOption = Annotated[list[str] | None, typer.Option(help="0 server, 1 update, 2 local step; all by default.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
ChunkOption = Annotated[
    int, typer.Option(callback=at_least_one, help="Victims attacked together at most; fewer if memory is short.")
]
OutOption = Annotated[Path, typer.Option(help="Folder for the results.")]
DataRootOption = Annotated[Path | None, typer.Option(help="Folder of datasets.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue an earlier run in the folder.")]
AllMembersOption = Annotated[
    bool,
    typer.Option("--all-members", help="Run every attack of a suite, even where an earlier one decided the verdict."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
PooledSeedOption = Annotated[list[str] | None, typer.Option(help="Comma-separated; seeds are pooled (0).")]
ShardOption = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Compute this part of the cells only; harness merge combines the parts."),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N", help="Compute this part only; in the end, --resume without --shard combines the parts."
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(help="Parallel processes for the cells, or for an attack's victims (one per core if faster)."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(help="Threads per process; may change the last bits of results (cores / jobs; 1 on a cluster)."),
]

ClusterOption = Annotated[
    str | None, typer.Option(help="ray or slurm: compute the cells on a cluster (pip extras of these names).")
]
ClusterArgs = Annotated[
    list[str] | None, typer.Option(help="key=value, repeated: ray's address, gpus; options of sbatch.")
]
TrainOnlyOption = Annotated[
    str | None,
    typer.Option(
        help="adapters: train only LoRA adapters and the last layer, like --model NAME+adapters(RANK).",
        autocompletion=among(("adapters",)),
    ),
]
AdapterRankOption = Annotated[int | None, typer.Option(help="LoRA rank of --train-only adapters (8).")]
RowJobsOption = Annotated[int | None, typer.Option(help="Parallel processes for the rows (1).")]


def options_of(
    settings: "type[BaseModel]", names: Sequence[str], several: Sequence[str] = (), unset: bool = False
) -> Callable[[Command], Command]:
    """Gives a command an option for each named field, which come to it as keyword arguments.

    Args:
        settings: whose fields they are; a field's description is its option's help.
        names: of the fields, in the order of the help.
        several: those of them that take a list, every entry of which is a setting of its own; they arrive as text.
        unset: whether an option that is not given arrives as None, with the default in its help only.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in named]
        made = [_option(name, settings.model_fields[name], name in several, unset) for name in names]

        @wraps(command)
        def run(**given: Any) -> int:
            return command(**given)

        run.__signature__ = own.replace(parameters=[*made, *kept])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*made, *kept)} | {"return": int}
        return run

    return decorate


_OutputOption = Annotated[
    Path | None, typer.Option(help="Write the printed table to this file too: .json, .csv, .html or .tex.")
]


def with_output(command: Command) -> Command:
    """Gives a command that prints tables by :func:`harness.cli.console.display` the option ``--output``."""
    own = inspect.signature(command)
    option = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_OutputOption)
    named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own.parameters.values()]

    @wraps(command)
    def run(**given: Any) -> int:
        output: Path | None = given.pop("output")
        if output is None:
            return command(**given)
        from harness.cli.console import copied

        _require_output(output, bool(given.get("as_json")))
        with copied() as copy:
            code = command(**given)
        _write_output(output, command.__name__.removesuffix("_command"), copy.parts)
        return code

    last = [one for one in named if one.name == "as_json"]
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*(one for one in named if one not in last), option, *last]
    )
    run.__annotations__ = {one.name: one.annotation for one in (*named, option)} | {"return": int}
    return run


def _with(name: str, annotation: Any, around: Callable[[Any, dict[str, Any], Command], int]) -> Any:
    """A decorator that gives a command one more option, None unless given.

    Args:
        around: what runs in the command's place where it is given: of its value, the other options, and the command.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command)
        option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own.parameters.values()]

        @wraps(command)
        def run(**given: Any) -> int:
            value = given.pop(name)
            return command(**given) if value is None else around(value, given, command)

        run.__signature__ = own.replace(parameters=[*named, option])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*named, option)} | {"return": int}
        return run

    return decorate


_TrackOption = Annotated[
    str | None,
    typer.Option(
        help="mlflow: also log the results as an MLflow run (pip extra mlflow).", autocompletion=among(("mlflow",))
    ),
]
_ALSO = ("svg", "pdf")
_PicturesAsOption = Annotated[
    list[str] | None,
    typer.Option(help="Also write pictures as svg, pdf; comma-separated.", autocompletion=among(_ALSO)),
]


def with_tracking(of: str, not_with: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Gives a command that writes results to its ``out`` the option ``--track``.

    Args:
        of: the command's name.
        not_with: options, as parameters, with which it writes none.
    """

    def tracked(track: str, given: dict[str, Any], command: Command) -> int:
        from harness.tracking import require_tracker, track_folder

        require_tracker(track)
        if given.get("shard"):
            raise UsageError("--track needs a whole run; leave it out with --shard")
        for name in not_with:
            if given.get(name):
                raise UsageError(f"--{name.replace('_', '-')} leaves no results to track; drop --track")
        code = command(**given)
        track_folder(given["out"], of, track)
        return code

    return _with("track", _TrackOption, tracked)


def with_pictures_as(command: Command) -> Command:
    """Gives a command that draws the option ``--pictures-as``."""

    def drawn(asked: list[str], given: dict[str, Any], command: Command) -> int:
        kinds = split_lists(asked)
        if unknown := [kind for kind in kinds if kind not in _ALSO]:
            raise UsageError(f"--pictures-as takes {' and '.join(_ALSO)}, not {unknown[0]!r}; a PNG is written anyway")
        from harness.reports.pictures import also_as

        with also_as(kinds):
            return command(**given)

    return _with("pictures_as", _PicturesAsOption, drawn)(command)


def _require_output(output: Path, as_json: bool) -> None:
    """Before anything is computed. Raises UsageError where no table will be printed, or nothing can be written."""
    from harness.reports.html.page import ENDINGS
    from harness.results import require_writable

    if as_json:
        raise UsageError("--json prints no table for --output; leave one of them out")
    if output.suffix.lower() not in ENDINGS:
        raise UsageError(f"--output must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, not {str(output)!r}")
    require_writable(output, "--output")


def _write_output(output: Path, command: str, copied: "Sequence[Printed]") -> None:
    from harness.cli.console import note
    from harness.reports.html.page import printed
    from harness.reports.html.table import Head, Table, Value
    from harness.results import write_atomic

    parts = [
        part if isinstance(part, str) else Table(
            "table", part[0], tuple(
                Head(title, number, wide=_WIDE < longest <= _LONG, long=longest > _LONG)
                for place, (title, number) in enumerate(zip(part[1], part[2], strict=True))
                for longest in [max((len(row[place]) for row in part[3]), default=0)]
            ),
            tuple(tuple(Value("; ".join(entry.splitlines())) for entry in row) for row in part[3]),
        )
        for part in copied
    ]  # fmt: skip
    if not any(isinstance(part, Table) for part in parts):
        note(f"no table was printed, so {output} is not written")
        return
    content, left_out = printed(f"harness {command}", parts, output.suffix.lower())
    write_atomic(output, content, "--output")
    if left_out:
        note(f"tables with other columns that {output} has no room for: {left_out}; .json, .html and .tex hold all")


def _option(name: str, field: "FieldInfo", several: bool, unset: bool) -> inspect.Parameter:
    kind, default = (list[str] if several else _plain(field.annotation)), field.default
    about = field.description or ""
    if unset or several:
        about += f" ({_shown(default)})" if default is not None and default is not False else ""
        kind, default = kind | None, None
    flag = (f"--{name.replace('_', '-')}",) if kind in (bool, bool | None) else ()
    words = _words(field.annotation)
    annotation = Annotated[kind, typer.Option(*flag, help=about, autocompletion=among(words) if words else None)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _words(annotation: Any) -> list[str]:
    """Return what a setting can be, where its type names each."""
    if get_origin(annotation) is Literal:
        return [one for one in get_args(annotation) if isinstance(one, str)]
    inner = get_args(annotation) if get_origin(annotation) in (Union, UnionType, Annotated, tuple) else ()
    return [word for one in inner for word in _words(one)]


def _plain(annotation: Any) -> Any:
    """The type that a command line can give: ranges and choices are the settings' to check."""
    if get_origin(annotation) in (Union, UnionType):
        inner = [one for one in get_args(annotation) if one is not NoneType]
        return _plain(inner[0]) | None
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    return str if get_origin(annotation) is Literal else annotation


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
    from harness.base.devices import use_threads
    from harness.parallel.processes import threads_per_job

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
        raise UsageError("--cluster-arg needs a cluster; add --cluster ray or --cluster slurm")


def without(arguments: Sequence[str], options: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command's arguments without some of its options, each of which takes a value, and without some flags."""
    kept: list[str] = []
    value_of_one = False
    for argument in arguments:
        if not value_of_one and argument not in flags and argument.partition("=")[0] not in options:
            kept.append(argument)
        value_of_one = not value_of_one and argument in options
    return kept


def split_lists(values: Iterable[str]) -> list[str]:
    """``["a,b", "c"]`` as ``["a", "b", "c"]``, without repeats, in order."""
    parts = [part.strip() for value in values for part in str(value).split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def numbers(values: Iterable[Any], option: str) -> list[int]:
    """Whole numbers from comma-separated or repeated values.

    Raises:
        UsageError: one of them is not a whole number.
    """
    try:
        return [int(value) for value in split_lists(values)]
    except ValueError as error:
        raise UsageError(
            f"--{option} takes whole numbers separated by commas, got {','.join(map(str, values))!r}"
        ) from error


def one_line(words: str, option: str) -> str:
    """Return what the operator states, as one line. Raises UsageError where it is too long for a page."""
    line = " ".join(words.split())
    if len(line) > _LONGEST_LINE:
        raise UsageError(f"{option} has {len(line)} characters; write at most {_LONGEST_LINE}")
    return line
