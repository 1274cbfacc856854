"""A table of the report before it takes a form: HTML, Markdown, CSV, LaTeX and JSON are made of the same values."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reports import text


@dataclass(frozen=True)
class Value:
    """An entry: what is shown, and what it is sorted by (a number where it has one).

    ``kind`` is a style of ours, never a word from a result.
    """

    shown: str
    order: float | str | None = None
    kind: str = ""


@dataclass(frozen=True)
class Head:
    """A column's title; ``choice``: few different words, worth a filter of their own; ``wide``: long sentences."""

    title: str
    number: bool = False
    choice: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """``name`` is a word of ours: an anchor on the page, and the file's name in CSV."""

    name: str
    title: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""


def words(value: object, longest: int = 600) -> Value:
    """Any text from a result as one safe line."""
    return Value(text.MISSING if value in (None, "") else text.safe(str(value), longest))


def figure(value: float | None, digits: int = 3) -> Value:
    """A number."""
    return Value(text.number(value, digits), value)


def make(name: str, title: str, columns: Sequence[Head], rows: Sequence[Sequence[Value]], note: str = "") -> Table:
    """A table of the columns that say anything: one where every entry is missing is left out."""
    kept = [place for place in range(len(columns)) if any(row[place].shown != text.MISSING for row in rows)]
    entries = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table(name, title, tuple(columns[place] for place in kept), entries, note)
