"""The words and numbers of the regression gate, for its table, its Markdown summary and its JUnit file."""

from harness.gate import Finding, Report
from harness.reports.text import number, percent, safe

COLUMNS = ("what", "cell", "success", "mean rank", "log RMSE", "p", "victims")


def shown(report: Report, everything: bool = False) -> list[Finding]:
    """What is worth a line: everything but the cells that did not move."""
    return [finding for finding in report.findings if everything or finding.kind != "unmoved"]


def row(finding: Finding) -> tuple[str, ...]:
    """A finding as the texts of COLUMNS; where there are no numbers the detail stands beside the cell."""
    moved = finding.movement
    if moved is None:
        cell = f"{finding.cell}: {finding.detail}" if finding.cell else finding.detail
        return (finding.kind, safe(cell, 200), "", "", "", "", "")
    return (
        finding.kind,
        safe(finding.cell),
        _arrow(percent(moved.asr[0]), percent(moved.asr[1])),
        _arrow(number(moved.rank[0], 2), number(moved.rank[1], 2)),
        _arrow(number(moved.log_rmse[0], 2), number(moved.log_rmse[1], 2)),
        "" if finding.p is None else f"{finding.p:.2g}",
        f"{moved.victims} {moved.pairing}",
    )


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"
