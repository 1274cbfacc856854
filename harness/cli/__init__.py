"""The ``harness`` command."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

#: Exit codes as a shell says them of a signal: stopped by hand, and nobody reads the output any more.
STOPPED, UNREAD = 130, 141


class Unwritable(OSError):
    """Standard output takes no more, for example as its disk is full."""


class Output(TextIOWrapper):
    """Standard output, whose failures can be told from those of files."""

    def write(self, text: str, /) -> int:
        with _told():
            return super().write(text)

    def flush(self) -> None:
        with _told():
            super().flush()


def main() -> None:
    """Entry point of the ``harness`` script."""
    # Pictures are drawn to files; a notebook's setting would make matplotlib look for a screen that is not there.
    os.environ["MPLBACKEND"] = "agg"
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who called
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for as long as we live)
        else:
            stream.reconfigure(errors="backslashreplace")  # a screen without a letter is no reason to end a run
    out = sys.stdout
    if isinstance(out, TextIOWrapper):
        sys.stdout = Output(out.buffer, out.encoding, out.errors, None, out.line_buffering, out.write_through)
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = STOPPED
    except BrokenPipeError:
        _drop_output()
        code = UNREAD
    except Unwritable as error:
        _drop_output()
        print(f"harness: cannot write standard output ({error})", file=sys.stderr)
        code = 2
    sys.exit(code)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror) from error


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what would still be written on the way out


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code, see :func:`harness.cli.app.run`."""
    from harness.cli import app  # here, so that stopping it by hand is silent while it is imported too

    return app.run(arguments)


__all__ = ["main", "run"]
