"""A table of ours beside the paper's: header, columns, one line per cell."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.results import StoredCell

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
        """How many cells agree with the paper, or what stands ``against`` ours where its numbers are not known."""
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
