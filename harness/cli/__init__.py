"""The ``harness`` command."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from harness.base.errors import escaped

#: Exit codes as a shell says them of a signal: stopped by hand, and nobody reads the output any more.
STOPPED, UNREAD = 130, 141


class Unwritable(OSError):
    """Standard output takes no more, for example as its disk is full."""


class Stream(TextIOWrapper):
    """Standard output or error on which nothing steers the terminal, whatever names and files hold."""

    def write(self, text: str, /) -> int:
        return self.as_it_is(escaped(text))

    def as_it_is(self, text: str) -> int:
        """Writes colours and progress bars, which are codes of our own."""
        return super().write(text)

    @property
    def unfiltered(self) -> "Unfiltered":
        """Stream without its filter, for a caller that has a filter already."""
        return Unfiltered(self)


class Unfiltered:
    """A stream that writes everything as it is."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.write = stream, stream.as_it_is

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Output(Stream):
    """Standard output, whose failures can be told from those of files."""

    def as_it_is(self, text: str) -> int:
        with _told():
            return super().as_it_is(text)

    def flush(self) -> None:
        with _told():
            super().flush()


def main() -> None:
    """Entry point of the ``harness`` script."""
    # Pictures are drawn to files; a notebook's setting would make matplotlib look for a screen that is not there.
    os.environ["MPLBACKEND"] = "agg"
    for name, kind in (("stdout", Output), ("stderr", Stream)):
        stream = getattr(sys, name)
        if stream is None:  # closed by who called
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for as long as we live)
        elif isinstance(stream, TextIOWrapper) and not isinstance(stream, Stream):
            # A screen without a letter is no reason to end a run.
            settings = stream.encoding, "backslashreplace", None, stream.line_buffering, stream.write_through
            setattr(sys, name, kind(stream.buffer, *settings))
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
