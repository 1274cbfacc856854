"""The command line: one file per command, imported when it is called; mistakes as one line and an exit code."""

import errno
import importlib
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from harness.base.errors import (
    UsageError,
    as_written,
    in_one_line,
    lacks_files,
    lacks_memory,
    lacks_room,
    own_place,
    printable,
)
from harness.base.version import __version__
from harness.cli import STOPPED, Unwritable
from harness.cli.sketch import NotSketched, sketch

DONE, REGRESSION, MISTAKE, INVALID, INCOMPARABLE = 0, 1, 2, 3, 4
#: A fault that is nobody's mistake, as sysexits.h numbers it.
FAULT = 70

#: Set by a shell that asks what could come next, to how it asks.
COMPLETE = "_HARNESS_COMPLETE"

#: The commands, each with the first line of its help.
COMMANDS = {
    "account": "Compute the privacy cost of noise: epsilon, delta, steps within a budget, or the noise it needs.",
    "assure": "Write a report for data-protection officers: what was tested, what was reconstructed, what is proven.",
    "audit": "Compute a lower bound on epsilon by guessing which canaries were in the training of one run.",
    "bench": "Measure speed and memory.",
    "check": "Fail (exit code 1) if a defense is less resilient than the baseline, or an attack is broken.",
    "claims": "Print what filters of Flower, NVFlare, Opacus and others claim, beside the epsilon that is proven.",
    "compare": "Show paired differences, B minus A, of success rate, lineup rank and log RMSE with 95% intervals.",
    "data": "Show and fetch datasets.",
    "evaluate": "Attack clients that train under a defense, at every surface, and report what leaks.",
    "export": "Write results as a file for another program: a table, a test report, alerts, a registry's record.",
    "frontier": "Measure how much noise is needed and its cost: accuracy, proven epsilon and leakage per noise level.",
    "history": "Show how success rates and lineup ranks change from run to run; the largest changes come first.",
    "judge": "Test what leaks from captured updates, and whether the declared defense is on.",
    "list": "List attacks, defenses, datasets, models, surfaces and presets, with their settings.",
    "merge": "Combine the shards of a run, and compute its verdicts.",
    "new": "Write a package for your own attack or defense: its file, its test, its entry point.",
    "report": "Make a report of runs: what leaks where, pictures, figures, privacy statements, and commands.",
    "reproduce": "Run a table of the papers and print ours beside theirs, with a verdict per cell.",
    "site": "Make a static board of runs. Each row has a card that anybody can verify.",
    "train": "Train a federation under a defense: accuracy, epsilon, noise and gradient norm per round.",
    "verify": "Compute a card's row again. Exit code 1 if it differs; every difference is named.",
    "view": "Show all runs in one page: a table to filter, how verdicts changed, and the report of each run.",
}

# What the parser refuses, which is typer's own in its newer versions and click's in those that Flower shares.
_REFUSED: Any = [kind for kind in typer.BadParameter.__mro__ if hasattr(kind, "format_message")][-1]

# A hint that typer gives and click too, in the versions that Flower takes.
_REPEATED = re.compile(r"(Did you mean [^?]+\?)(?: \1)+")

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Does a federated-learning defense really stop gradient leakage?",
)  # fmt: skip


def print_json(document: Any) -> None:
    """Prints a document as JSON."""
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"harness {__version__}")
        raise typer.Exit


def lazy_group(app: typer.Typer, commands: Mapping[str, str]) -> type[TyperGroup]:
    """The class of a group whose commands join ``app`` as their modules, which are named like them, are imported.

    Args:
        commands: what help says of each.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.imported = dict(self.commands)
            self.commands = {name: TyperCommand(name, help=about) for name, about in commands.items()}
            self.listing = self.sketched = False

        def get_command(self, context: typer.Context, name: str) -> TyperCommand | TyperGroup | None:
            if self.listing:
                return self.commands.get(name)
            if self.sketched:
                return sketch(name) if name in commands else None
            if name in commands and name not in self.imported:
                importlib.import_module(f"{__package__}.{name}")
                fresh = typer.main.get_group(app)
                assert isinstance(fresh, LazyGroup)
                self.imported = fresh.imported
            return self.imported.get(name)

        def shell_complete(self, context: typer.Context, incomplete: str) -> Any:
            """Names and what they are for: a shell waits for this."""
            self.listing = True
            try:
                return super().shell_complete(context, incomplete)
            finally:
                self.listing = False

        def format_commands(self, context: typer.Context, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(commands.items()))

    return LazyGroup


@app.callback(cls=lazy_group(app, COMMANDS))
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


@cache
def _whole_command() -> Any:
    """Commands join it as they are imported; one is enough for any number of command lines."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code.

    0 done, 1 regression, 2 a mistake to fix, also in code of one's own, 3 an invalid run, 4 what could not be
    compared, 70 a fault of this program, 130 stopped by hand. Never a traceback, unless ``HARNESS_TRACEBACK`` is
    set.

    Raises:
        BrokenPipeError: nobody reads the output any more.
        Unwritable: standard output takes no more.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Line())
    # A machine without a usable GPU driver is a normal machine, not something to warn its user about.
    warnings.filterwarnings("ignore", message="CUDA initialization")
    try:
        _refuse_empty(arguments)
        _refuse_bytes(arguments)
        _answered(arguments)
        command = _whole_command()
        with _parsed(command, arguments) as context:
            code = command.invoke(context)
        return code if isinstance(code, int) else DONE
    except typer.Exit as end:
        return end.exit_code
    except UsageError as error:
        return _say(as_written(str(error), _options_by_setting(arguments)))
    except _REFUSED as error:
        message = _REPEATED.sub(r"\1", error.format_message().replace("Value error, ", "")).rstrip(".")
        asked = getattr(error, "ctx", None)
        return _say(f"{message} (see {asked.command_path if asked else _named(arguments)} --help)")
    except KeyboardInterrupt:
        return STOPPED
    except (BrokenPipeError, Unwritable):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error.__context__, BrokenPipeError):  # as rich says it
            raise error.__context__ from None
        return _fault(error)


def _named(arguments: list[str]) -> str:
    """The command of a line that the parser gave up on, as help names it."""
    return " ".join(["harness", *(one for one in arguments[:1] if one in COMMANDS)])


def _options_by_setting(arguments: list[str]) -> dict[str, str]:
    """Options of the command that is run, by the names of its parameters."""
    command: Any = _whole_command()
    for word in arguments:
        if isinstance(command, TyperGroup):
            command = getattr(command, "imported", command.commands).get(word, command)
    if isinstance(command, TyperGroup):
        return {}
    return {one.name: one.opts[0] for one in command.params if one.name and one.opts[0].startswith("--")}


def _refuse_empty(arguments: list[str]) -> None:
    """Raises UsageError for an option with nothing, as of a shell's variable that is not set: a path would be here."""
    for option, value in zip(arguments, [*arguments[1:], None], strict=False):
        name, equals, own = option.partition("=")
        if name.startswith("--") and (value == "" or (equals and not own)):
            raise UsageError(f"{name} is empty; give it a value or leave it out")


def _refuse_bytes(arguments: list[str]) -> None:
    """Raises UsageError for a name or a path that is not text: no document, log or picture could name it."""
    for one in arguments:
        try:
            one.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{one!r} is not text in UTF-8; rename it") from error


def _answered(arguments: list[str]) -> None:
    """Prints the help or the completion that is asked for, where it is; no command is imported for it.

    Raises:
        typer.Exit: that was all; completion itself ends the process, which a user's own code must not do elsewhere.
    """
    alone = len(arguments) == 1 and arguments[0] in COMMANDS and isinstance(sketch(arguments[0]), TyperGroup)
    if not (COMPLETE in os.environ or {"--help", "-h"} & set(arguments) or alone):
        return
    command: Any = typer.main.get_command(app)
    command.sketched = True
    try:
        if COMPLETE in os.environ:
            command.main(arguments, "harness", COMPLETE)
        # A group alone on its line asks for its help too.
        with command.make_context("harness", [*arguments, *["--help"] * alone]) as context:
            command.invoke(context)
    except (NotSketched, _REFUSED):
        return
    except SystemExit as end:
        raise typer.Exit(end.code if isinstance(end.code, int) else DONE) from None


def _parsed(command: Any, arguments: list[str]) -> Any:
    """The context of the whole command line.

    Raises:
        typer.Exit: help or the version was all.
    """
    try:
        return command.make_context("harness", arguments or ["--help"], obj=arguments)
    except SystemExit as end:
        raise typer.Exit(end.code if isinstance(end.code, int) else DONE) from None


@contextmanager
def resumable() -> Iterator[None]:
    """Turn a stop by hand inside this context into a message that --resume goes on with the work."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise typer.Exit(_say("stopped; add --resume to the same command to go on", STOPPED)) from stop


def _fault(error: BaseException) -> int:
    if lacks_memory(error):
        return _say(f"there is not enough memory: take fewer of what was asked for ({in_one_line(error)})")
    if lacks_files(error):
        return _say("too few files may be open at once; allow more, for example with: ulimit -n 1024")
    if lacks_room(error):
        return _say(
            f"a file could not be written ({in_one_line(error)}); make room, TMPDIR names the folder of scratch files"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return _say(f"the system does not follow a name or a path ({in_one_line(error)}); name another one")
    if isinstance(error, UnicodeError) or "surrogates not allowed" in str(error):
        return _say(f"a name or a path is not text in UTF-8 ({in_one_line(error)}); rename it")
    if os.environ.get("HARNESS_TRACEBACK"):
        traceback.print_exception(error)
    if place := own_place(error):
        return _say(f"{place}: {in_one_line(error)}; HARNESS_TRACEBACK=1 shows how it came there")
    return _say(f"a fault, not a mistake of yours: {in_one_line(error)}; HARNESS_TRACEBACK=1 shows where", FAULT)


class _Line(logging.Formatter):
    """A warning as a line like any other."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(record.getMessage())


def _say(message: str, code: int = MISTAKE) -> int:
    print(f"harness: {printable(message)}", file=sys.stderr)
    return code
