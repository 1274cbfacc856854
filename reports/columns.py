"""What a row of the results table says about a cell, column by column."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from harness.reports import text
from harness.results import CellResult

VERDICT_STYLES = {"leaks": "bold red", "resilient": "green", "inconclusive": "yellow"}


@dataclass(frozen=True)
class Column:
    """A column: its title, what it shows of a cell, and from how many characters on its words wrap (0: never)."""

    title: str
    show: Callable[[CellResult], Text | str]
    wraps_at: int = 0
    right: bool = False

    def render(self, cell: CellResult) -> Text:
        """The entry as text in which nothing is markup."""
        shown = self.show(cell)
        return shown if isinstance(shown, Text) else Text(shown)


def defense(cell: CellResult) -> Text:
    """The defense and, dimmed below, its arguments."""
    entry = Text(text.safe(cell.defense, 40))
    if cell.defense_args:
        entry.append("\n" + text.arguments(cell.defense_args), style="dim")
    return entry


def surface(cell: CellResult) -> str:
    """The surface's number, or the tap where it is not a surface."""
    return text.safe(cell.tap, 20) if cell.surface is None else str(cell.surface)


def verdict(cell: CellResult) -> Text:
    """The verdict in its colour."""
    if cell.not_applicable_reason is not None:
        return Text("impossible", style="dim")
    return Text(cell.verdict, style=VERDICT_STYLES[cell.verdict])


def success_rate(cell: CellResult) -> str:
    """Share of images reconstructed by the strict rule."""
    return text.rate(cell.asr.get("strict"))


def error(cell: CellResult) -> str:
    """Median and mean RMSE."""
    summary = cell.metrics.get("rmse")
    return text.MISSING if summary is None else f"{text.number(summary.median)} / {text.number(summary.mean)}"


def median_error(cell: CellResult) -> str:
    """Median RMSE alone."""
    summary = cell.metrics.get("rmse")
    return text.number(None if summary is None else summary.median)


def metric(name: str, digits: int) -> Callable[[CellResult], str]:
    """Shows the mean of the metric ``name``."""
    return lambda cell: text.mean(cell.metrics.get(name), digits)


def label_accuracy(cell: CellResult) -> str:
    """Accuracy of the inferred labels."""
    return text.percent(cell.label.accuracy)


def lineup(cell: CellResult) -> str:
    """The p-value of the lineup test."""
    return text.p_value(cell.lineup.p_value)


def guarantees(cell: CellResult) -> str:
    """The privacy statements, a line each; the view is named where there are several."""
    named = len({statement.view for statement in cell.privacy}) > 1
    return "\n".join(text.guarantee(statement, named) for statement in cell.privacy) or text.MISSING


def outcomes(cell: CellResult) -> str:
    """How victims ended, leaving out what never happened."""
    counts = cell.outcomes.model_dump()
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)


Layout = tuple[Column, ...]

DEFENSE = Column("defense", defense, wraps_at=18)
ATTACK = Column("attack", lambda cell: text.safe(cell.attack, 24))
SURFACE = Column("surface", surface)
VERDICT = Column("verdict", verdict)
SUCCESS = Column("success [95%]", success_rate)
LINEUP = Column("lineup p", lineup, right=True)
GUARANTEE = Column("guarantee", guarantees, wraps_at=16)

_WHO = (DEFENSE, ATTACK, SURFACE, VERDICT, SUCCESS)
MEDIUM = (*_WHO, Column("RMSE", median_error, right=True), LINEUP, GUARANTEE)
WIDE = (
    *_WHO,
    Column("RMSE med/mean", error),
    Column("PSNR", metric("psnr", 1), right=True),
    Column("labels", label_accuracy, right=True),
    Column("tau", metric("tau", 0), right=True),
    LINEUP,
    GUARANTEE,
    Column("outcomes", outcomes, wraps_at=10),
)
CONTROLS = (Column("control", lambda cell: text.safe(cell.control or "", 24)), *_WHO, LINEUP)
