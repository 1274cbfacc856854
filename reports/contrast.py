"""Two runs or two defenses side by side, for people."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.gate.contrast import Contrast, Difference
from harness.reports.text import MISSING, safe


def print_contrasts(
    contrasts: Sequence[Contrast], alone: Sequence[str], problems: Sequence[str], console: Console
) -> None:
    """Prints a row per pair of cells; a difference whose interval leaves 0 out is bold."""
    table = Table("A", "B", "success", "mean rank", "log RMSE", "victims")
    for one in contrasts:
        other = "same" if one.a == one.b else safe(one.b)
        victims = f"{one.victims[1]} paired" if one.paired else f"{one.victims[0]} and {one.victims[1]}"
        numbers = [_shown(one.asr), _shown(one.rank), _shown(one.log_rmse)]
        table.add_row(Text(safe(one.a)), Text(other), *numbers, victims)
    console.print(table)
    console.print(Text("B - A with 95% intervals, each on its own; mean rank: 0 nearest to the truth, 0.5 chance"))
    for title in alone:
        console.print(Text(f"only in one: {safe(title)}"))
    for problem in problems:
        console.print(Text(safe(problem, 300)))


def _shown(value: Difference) -> Text:
    if value.difference is None or value.ci95 is None:
        return Text(MISSING)
    low, high = value.ci95
    clear = low > 0 or high < 0
    return Text(f"{value.difference:+.2f} [{low:+.2f}, {high:+.2f}]", style="bold" if clear else "")
