"""Sentences that cannot be said without a field behind them: each names the fields of the files that it comes from."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.reports import text
from harness.reports.html.run_data import RunData
from harness.results import CellResult, SummaryRow


@dataclass(frozen=True)
class Field:
    """A value in words, and where it comes from: a file and a JSON pointer (RFC 6901), or an option."""

    shown: str
    source: str


@dataclass(frozen=True)
class Sentence:
    """Words with the fields behind them; ``kind`` is a style of ours."""

    words: str
    sources: tuple[str, ...]
    kind: str = ""

    @property
    def origin(self) -> str:
        """The sources in a row, as the page notes them."""
        return " ".join(self.sources)


def sentence(template: str, kind: str = "", because: Iterable[str] = (), **fields: Field) -> Sentence:
    """The template with its fields in it.

    Args:
        because: sources that decide whether this is said at all.

    Raises:
        ValueError: no field stands behind it.
    """
    sources = dict.fromkeys([*(field.source for field in fields.values()), *because])
    if not sources:
        raise ValueError(f"no field stands behind {template!r}")
    return Sentence(template.format(**{name: field.shown for name, field in fields.items()}), tuple(sources), kind)


@dataclass(frozen=True)
class Files:
    """Names the fields of one run's files; ``number`` tells runs apart."""

    number: int
    run: RunData

    def result(self, *names: object) -> str:
        """A place in ``results.json``."""
        return self._at("results.json", names)

    def judged(self, *names: object) -> str:
        """A place in ``judged.json``."""
        return self._at("judged.json", names)

    def row(self, row: SummaryRow, *names: object) -> str:
        """A place in a summary row."""
        return self.result("summary", next(at for at, one in enumerate(self.run.summary) if one is row), *names)

    def cell(self, cell: CellResult, *names: object) -> str:
        """A place in a cell."""
        return self.result("cells", next(at for at, one in enumerate(self.run.cells) if one is cell), *names)

    def victims(self, cell: CellResult) -> str:
        """The lines of a cell in ``victims.jsonl``, by its key."""
        return f"run{self.number}/victims.jsonl#{cell.key}"

    def _at(self, file: str, names: Iterable[object]) -> str:
        return f"run{self.number}/{file}#" + "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in names)


def plain(value: object, source: str, longest: int = 300) -> Field:
    """A value of a file as one harmless line."""
    return Field(text.safe(str(value), longest), source)
