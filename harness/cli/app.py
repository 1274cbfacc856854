"""The command line: one file per command, user mistakes as one line and exit code 2."""

import logging
import sys
import warnings

import typer

from harness.errors import UsageError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Does a federated-learning defense really stop gradient leakage?",
)  # fmt: skip

DONE, REGRESSION, MISTAKE, INVALID, STOPPED = 0, 1, 2, 3, 130


def main() -> None:
    """Entry point of the ``harness`` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code.

    0 done, 1 regression, 2 a mistake to mend, 3 an invalid run, 130 stopped by hand.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    # A machine without a usable GPU driver is a normal machine, not something to warn its user about.
    warnings.filterwarnings("ignore", message="CUDA initialization")
    try:
        code = app(args=arguments or ["--help"], prog_name="harness", standalone_mode=False)
    except UsageError as error:
        return _say(str(error))
    except typer.TyperException as error:
        return _say(f"{error.format_message().splitlines()[0]} (see harness --help)")
    except (typer.Abort, KeyboardInterrupt):
        code = STOPPED
    if code == STOPPED:  # typer turns the interrupt into the shell's code for it and says nothing
        return _say("stopped; add --resume to the same command to go on", STOPPED)
    return code if isinstance(code, int) else DONE


def _say(message: str, code: int = MISTAKE) -> int:
    print(f"harness: {' '.join(message.split())}", file=sys.stderr)
    return code
