"""Help and completion of commands without their modules, whose import takes seconds: from a file made of them.

After a command or an option changed, ``python -m harness.cli.catalogue`` writes that file again.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

#: What `harness list` prints of our own names, and what help and completion know of commands; beside this file.
CATALOGUE, SKETCHES = "catalogue.json", "commands.json"

Row = dict[str, Any]
Complete = Callable[[str], list[str]]

#: Values of an option of these names, whatever its command: words, or the section of `harness list` that has them.
VALUES: dict[str, str | list[str]] = {
    "defense": "defenses", "attack": "attacks", "dataset": "datasets", "prior": "datasets", "model": "models",
    "preset": "presets", "tap": "surfaces", "surface": ["0", "1", "2"], "device": ["auto", "cpu", "cuda"],
    "cluster": ["ray", "slurm"], "update_model": ["first", "avg", "path", "unroll"],
    "adversary": ["honest", "tampering"],
}  # fmt: skip


class NotSketched(Exception):
    """Help was not what the command line asked for: the command itself is to run."""


def among(words: Sequence[str]) -> Complete:
    """The ``autocompletion`` of an option or argument that is one of these words, or several with commas between."""

    def complete(incomplete: str) -> list[str]:
        return _matching(words, incomplete)

    complete.words = list(words)  # type: ignore[attr-defined]
    return complete


def named(section: str) -> Complete:
    """The ``autocompletion`` of a name in a section of ``harness list``, those of other packages among them."""

    def complete(incomplete: str) -> list[str]:
        rows = json.loads(_read(CATALOGUE))[section]
        own = [name for row in rows for name in (row["name"], *row.get("aliases", []))]
        return _matching([*own, *(point.name for point in entry_points(group=f"harness.{section}"))], incomplete)

    complete.words = section  # type: ignore[attr-defined]
    return complete


def _matching(words: Sequence[str], incomplete: str) -> list[str]:
    """Return what could stand there; of a list, or of defenses that are added up, the last entry is what is written
    on."""
    kept, _, begun = re.fullmatch(r"((?:.*[,+])?)()(.*)", incomplete, re.DOTALL).groups()  # type: ignore[union-attr]
    return [kept + word for word in dict.fromkeys(words) if word.startswith(begun)]


def sketch(name: str) -> TyperCommand | TyperGroup:
    """A command, or a group of them, that answers for help and completion only.

    Raises:
        NotSketched: later, as it is invoked.
    """
    return _sketch(name, json.loads(_read(SKETCHES))[name])


@cache
def _read(name: str) -> str:
    return (files("harness.cli") / name).read_text(encoding="utf-8")


def _sketch(name: str, row: Row) -> TyperCommand | TyperGroup:
    if "commands" in row:
        commands: dict[str, Any] = {inner: _sketch(inner, of) for inner, of in row["commands"].items()}
        return Listed(name=name, commands=commands, help=row["about"], no_args_is_help=True, rich_markup_mode=None)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    def ask(**_: Any) -> None:
        raise NotSketched

    parameters = [_parameter(f"p{at}", one) for at, one in enumerate(row["parameters"]) if one["kind"] != "help"]
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {one.name: one.annotation for one in parameters}
    app.command(name, cls=type("Sketch", (Sketched,), {"row": row}), help=row["about"])(ask)
    return typer.main.get_command(app)  # type: ignore[return-value]


def _parameter(name: str, row: Row) -> inspect.Parameter:
    kind: Any = bool if row["kind"] == "flag" else list[str] | None if row["kind"] == "several" else str | None
    words = row.get("values")
    complete = None if words is None else named(words) if isinstance(words, str) else among(words)
    made: Any = typer.Argument(autocompletion=complete)
    if row["names"]:
        made = typer.Option(*row["names"], help=row["record"][1], autocompletion=complete)
    default = False if kind is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


class Listed(TyperGroup):
    """A group whose help says of each command what the command's own begins with, uncut."""

    def format_commands(self, context: typer.Context, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, (command.help or "").split("\n\n")[0]) for name, command in self.commands.items()]
            )


class Sketched(TyperCommand):
    """Writes the help that the command itself writes, at any width."""

    row: Row

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Writes the first line."""
        formatter.write_usage(ctx.command_path, " ".join(self.row["usage"]))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the sections."""
        for title, places in self.row["sections"]:
            with formatter.section(title):
                formatter.write_dl([tuple(self.row["parameters"][place]["record"]) for place in places])


class _Recorder:
    """A formatter of help that keeps sections as they come, before any line is broken."""

    def __init__(self) -> None:
        self.sections: list[tuple[str, list[Any]]] = []

    @contextmanager
    def section(self, title: str) -> Any:
        self.sections.append((title, []))
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        self.sections[-1][1].extend(rows)


def row_of(command: Any, context: Any, completes: dict[str, Any]) -> Row:
    """Return what the file has of a command.

    Args:
        command: of typer; not a group. context: its own.
        completes: ``autocompletion`` of those parameters that have one, by name.
    """
    recorder, records, parameters = _Recorder(), [], []
    command.format_options(context, recorder)
    for one in command.get_params(context):
        names = [] if one.param_type_name == "argument" else sorted(one.opts)
        if one.secondary_opts:
            names = ["/".join([*names, *one.secondary_opts])]
        several = one.nargs != 1 or getattr(one, "multiple", False)
        kind = "flag" if getattr(one, "is_flag", False) else "several" if several else "one"
        records.append(one.get_help_record(context) or ("", ""))
        words = getattr(completes.get(one.name), "words", VALUES.get(one.name)) if kind != "flag" else None
        made = {"names": names, "kind": "help" if one.name == "help" else kind, "record": records[-1]}
        parameters.append(made | ({"values": words} if words else {}))
    sections = [(title, [records.index(row) for row in rows]) for title, rows in recorder.sections]
    usage = command.collect_usage_pieces(context)
    return {"about": command.help, "usage": usage, "sections": sections, "parameters": parameters}
