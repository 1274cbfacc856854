"""The regression gate in a terminal: one line of outcome, and a short table of what moved and by how much."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.gate import Report
from harness.reports.gate_words import COLUMNS, row, shown

_STYLES = {"more resilient": "green", "stronger attack": "yellow", "extra": "yellow"}


def print_gate(report: Report, console: Console) -> None:
    """Prints the headline and everything but the cells that did not move."""
    console.print(Text(report.headline, style="bold red" if report.failed else "bold green"))
    findings = shown(report)
    if not findings:
        return
    table = Table(*COLUMNS)
    for finding in findings:
        style = "red" if finding.fails else _STYLES.get(finding.kind, "")
        table.add_row(*(Text(entry) for entry in row(finding)), style=style)
    console.print(table)
    console.print(Text("mean rank: 0 nearest to the truth, 0.5 chance; p is adjusted over all cells (Holm)", "dim"))
