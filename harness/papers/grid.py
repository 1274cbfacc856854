"""A paper's table as data: settings, printed numbers, columns and words in one TOML file; one runner makes all of them.

A file in ``tables/`` has, beside ``title`` and ``source``:

* ``fields`` and ``rows``: the grid. A row's settings and printed numbers; a field ``quick`` says which rows ``--quick``
  keeps (all where there is none);
* ``measure``: who makes ours of a row, see :mod:`harness.papers.measures`, by ``settings``, ``methods`` (names of the
  paper, with our defense and its arguments) and ``facts`` (what else this measure needs), and ``rule``: when ours
  agrees;
* ``columns``: what is printed, each as a format of the row's and the measured values. A value that is absent is ``-``;
  a format that is one bare value keeps its type;
* ``header`` and ``notes``: lines with the same values. ``{quick = "..."}`` stands under ``--quick`` only, ``{full =
  "..."}`` without it, and ``@name`` is a line that the measure has to say.
"""

import string
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, Field, model_validator
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.datasets import dataset_status
from harness.results import StoredCell
from harness.study.runner import Request

_COLOURS = {"agrees": "green", "differs": "yellow", "not at hand": "dim"}


@dataclass(frozen=True)
class Comparison:
    """One reproduced table.

    ``header`` says what was run and what was scaled down; every row maps column names to values and its last column,
    ``verdict``, to ``agrees``, ``differs`` or ``not at hand``, or to ``-`` where there is nothing to compare with.
    """

    title: str
    header: list[str]
    rows: list[dict[str, Any]]
    notes: list[str]
    against: str = "the paper"

    @property
    def summary(self) -> str:
        """Count of cells that agree with the paper, or with what stands ``against`` ours where its numbers are not
        known."""
        verdicts = [row["verdict"] for row in self.rows if row["verdict"] != "-"]
        return f"{verdicts.count('agrees')} of {len(verdicts)} cells agree with {self.against}"

    def document(self) -> dict[str, Any]:
        """The table as plain JSON."""
        return {
            "title": self.title, "header": self.header, "rows": self.rows, "notes": self.notes,
            "summary": self.summary,
        }  # fmt: skip

    def print(self, console: Console) -> None:
        """Prints the table for people; wide enough to read when the output is not a terminal."""
        table = Table(title=self.title, title_justify="left")
        for name in self.rows[0]:
            table.add_column(name, overflow="fold")
        for row in self.rows:
            *cells, verdict = [str(value) for value in row.values()]
            table.add_row(*map(Text, cells), Text(verdict, style=_COLOURS.get(verdict, "")))
        for line in self.header:
            console.print(Text(line))
        console.print(table)
        console.print(Text(self.summary, style="bold"))
        for note in self.notes:
            console.print(Text(f"- {note}"))


def tau_of_successes(stored: StoredCell) -> float | None:
    """Mean first strict iteration over the images that were reconstructed; None without any."""
    found = [victim.tau for victim in stored.victims if victim.rmse is not None and victim.rmse <= 0.1]
    reached = [tau for tau in found if tau is not None]
    return sum(reached) / len(reached) if reached else None


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table cell; ``-`` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


#: The values of one row: what is printed, and what was measured. None is a value that cannot be had.
Values = dict[str, Any]
_TABLES = files("harness.papers") / "tables"
#: The bundled sample of a dataset.
SAMPLES = {"mnist": "mnist-sample", "cifar10": "cifar10-sample"}
# Another dataset of the same shape and size, to run an experiment on at all; its numbers are not the paper's.
_SURROGATES = {"fashion-mnist": "mnist", "emnist": "emnist-bymerge"}


class When(BaseModel, extra="forbid"):
    """A line that stands with ``--quick`` only, or without it only."""

    quick: str | None = None
    full: str | None = None


class Grid(BaseModel, extra="forbid", frozen=True):
    """One file; ``victims``: per cell, and under ``--quick``."""

    source: str
    title: str
    against: str = "the paper"
    measure: str
    rule: list[Any] = Field(default_factory=list)
    facts: dict[str, Any] = Field(default_factory=dict)
    victims: tuple[int, int] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, tuple[str, dict[str, Any]]] = Field(default_factory=dict)
    header: list[str | When] = Field(default_factory=list)
    notes: list[str | When] = Field(default_factory=list)
    columns: dict[str, str]
    fields: list[str]
    rows: list[list[Any]]

    @model_validator(mode="after")
    def _rows_are_whole(self) -> "Grid":
        if any(len(row) != len(self.fields) for row in self.rows):
            raise ValueError("a row has more or fewer values than there are fields")
        return self

    def printed(self, quick: bool = False) -> list[dict[str, Any]]:
        """Return the rows by field; ``quick``: those that ``--quick`` keeps."""
        every = [dict(zip(self.fields, row, strict=True)) for row in self.rows]
        return [row for row in every if row.pop("quick", True) or not quick]


class Measure(Protocol):
    """Maker of our values for a grid's rows."""

    def rows(self, printed: list[dict[str, Any]]) -> Iterator[Values]:
        """Yield the values of every printed line with its ``verdict``; deals the work and requires the whole."""
        ...

    def lines(self, name: str) -> Sequence[str]:
        """Return the lines of ``@name``. Raises KeyError: it has none of this name."""
        ...


@lru_cache
def grid(name: str) -> Grid:
    """Return the table in a file of the package."""
    return Grid.model_validate(tomllib.loads((_TABLES / f"{name}.toml").read_text(encoding="utf-8")))


def run_grid(name: str, measures: Mapping[str, Callable[[Grid, Request], Measure]], request: Request) -> Comparison:
    """Make the table of a file, ours beside the paper's; ``measures``: by the name that a file gives."""
    table = grid(name)
    measure = measures[table.measure](table, request)
    rows = [_line(table, values) for values in measure.rows(table.printed(request.quick))]
    words = {"seeds": list(request.seeds)} | table.facts
    if table.victims:
        count, every = request.count(*table.victims), table.victims[0]
        scale = f"quick: {count} victims instead of {every}" if count < every else f"{count} victims"
        words |= {"victims": count, "all_victims": every, "scale": scale}
    said = [list(_said(lines, words, request.quick, measure)) for lines in (table.header, table.notes)]
    return Comparison(table.title, said[0], rows, said[1], table.against)


def _line(table: Grid, values: Values) -> dict[str, Any]:
    return {name: shown(form, values) for name, form in table.columns.items()} | {"verdict": values["verdict"]}


def shown(form: str, values: Values) -> Any:
    """Return a format filled with values; ``-`` where one is absent, and a bare value as it is."""
    names = [name for _, name, _, _ in string.Formatter().parse(form) if name]
    if any(values.get(name.partition("[")[0]) is None for name in names):
        return "-"
    return values[names[0]] if form == f"{{{names[0]}}}" else form.format_map(values)


def _said(lines: Sequence[str | When], words: Values, quick: bool, measure: Measure) -> Iterator[str]:
    for one in lines:
        text = one if isinstance(one, str) else one.quick if quick else one.full
        if text is None:
            continue
        if text.startswith("@"):
            yield from measure.lines(text[1:])
        else:
            yield text.format_map(words)


def at_hand(name: str, root: Path) -> tuple[str | None, str]:
    """The dataset to use for the paper's ``name`` (None if there is none), and a line that says so."""
    available = {status.name for status in dataset_status(root) if status.available}
    if name in available:
        return name, f"{name}: full training split"
    sample = SAMPLES.get(name)
    if sample:
        return sample, f"{name}: bundled sample only (harness data fetch {name} gets the full split)"
    if name in _SURROGATES:
        used, line = at_hand(_SURROGATES[name], root)
        return used, f"{name}: surrogate data, {line}; the real one: harness data fetch {name}"
    return None, f"{name}: not at hand (get it with: harness data fetch {name})"
