"""Output of all commands: on their screen nothing that a name or a file holds is markup or an escape code."""

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from harness.base.errors import escaped, printable
from harness.cli.app import print_json

_ANY_WIDTH = 10_000


class Screen(Console):
    """Standard output for tables; styles are the tables' own.

    Where a terminal, or ``COLUMNS``, is too narrow for a table, its rows stand one below the other instead.

    Args:
        least: characters of a line at least, where nobody limits them: in a file or a pipe.
    """

    def __init__(self, least: int = 0) -> None:
        super().__init__(file=getattr(sys.stdout, "unfiltered", sys.stdout), markup=False, emoji=False)
        self.limited = self.is_terminal or "COLUMNS" in os.environ
        if not self.limited:
            self.width = max(self.width, least)

    def print(self, *objects: Any, **settings: Any) -> None:
        """Prints tables in the form that fits, and long lines broken at words where a line has an end."""
        settings["soft_wrap"] = settings.get("soft_wrap", False) and not self.limited
        super().print(*(self._fitting(one) if self.limited else one for one in objects), **settings)

    def _fitting(self, one: Any) -> Any:
        if not isinstance(one, Table):
            return one
        least = Measurement.get(self, self.options.update(max_width=_ANY_WIDTH), one).minimum
        return in_lines(one) if least > self.width else one

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return what is printed, piece by piece; codes that rich itself makes are pieces of their own."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(escaped(piece.text), piece.style)


#: A table's title, its column titles, whether each is right-aligned as numbers are, and its rows; or a line of text.
Printed = tuple[str, list[str], list[bool], list[list[str]]] | str


class Copy(Console):
    """Keeps what is drawn on it instead of showing it; so wide that every table has all of its columns."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), width=_ANY_WIDTH, markup=False, emoji=False)
        self.parts: list[Printed] = []

    def print(self, *objects: Any, **_: Any) -> None:
        """Takes tables apart into the words of their entries, and all else into lines."""
        for one in objects:
            if isinstance(one, Group):
                self.print(*one.renderables)
            elif isinstance(one, Padding):
                self.print(one.renderable)
            elif isinstance(one, Table):
                self.parts.append(_taken_apart(one))
            else:
                self.parts += [line for line in _words(one).splitlines() if line.strip()]


def in_lines(table: Table) -> Text:
    """A table as a paragraph for each row: its first entry, then its columns by name, without those that are empty."""
    title, heads, _, rows = _taken_apart(table)
    lines = [title] if title else []
    for row in rows:
        first, *others = zip(heads, (" ".join(entry.split()) for entry in row), strict=True)
        lines.append(f"{first[0]} {first[1]}".strip())
        lines += [f"    {head}: {entry}" for head, entry in others if entry not in ("", "-", "n/a")]
    return Text("\n".join(lines))


def _taken_apart(table: Table) -> tuple[str, list[str], list[bool], list[list[str]]]:
    columns = [[_words(entry) for entry in column.cells] for column in table.columns]
    heads = [_words(column.header) for column in table.columns]
    numbers = [column.justify == "right" for column in table.columns]
    return _words(table.title or ""), heads, numbers, [list(row) for row in zip(*columns, strict=True)]


def _words(entry: object) -> str:
    return entry.plain if isinstance(entry, Text) else str(entry)


_copy: ContextVar[Copy | None] = ContextVar("copy", default=None)


@contextmanager
def copied() -> Iterator[Copy]:
    """Within the block, what :func:`display` draws is kept too."""
    copy = Copy()
    token = _copy.set(copy)
    try:
        yield copy
    finally:
        _copy.reset(token)


def display(draw: Callable[[Console], None], least: int = 0) -> None:
    """Draws on the screen, ``least`` characters wide, and for ``--output`` once more where no line ends."""
    draw(Screen(least))
    if (copy := _copy.get()) is not None:
        draw(copy)


def tell(document: Any, as_json: bool, draw: Callable[[Console], None], least: int = 0) -> None:
    """Prints a document as JSON and nothing else, or draws what it says as :func:`display` does."""
    if as_json:
        print_json(document)
    else:
        display(draw, least)


def room() -> int | None:
    """Characters of a line of standard output; None where nobody limits them: in a file or a pipe."""
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if limited else None


def keep(part: Printed) -> None:
    """Keeps for ``--output`` what a command writes without :func:`display`."""
    if (copy := _copy.get()) is not None:
        copy.parts.append(part)


def note(line: str) -> None:
    """Says a line on standard error."""
    print(printable(line), file=sys.stderr)
