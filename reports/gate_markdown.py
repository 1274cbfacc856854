"""The regression gate as a Markdown summary, such as a CI service shows under a job."""

from harness.gate import Report
from harness.reports.gate_words import COLUMNS, row, shown


def gate_markdown(report: Report) -> str:
    """The headline, a table of what moved, and the unmoved cells folded away."""
    parts = [f"## Regression gate: {_plain(report.headline)}", ""]
    findings = shown(report)
    if findings:
        parts += [*_table(findings), ""]
    still = report.of("unmoved")
    if still:
        parts += [f"<details><summary>{len(still)} cells did not move</summary>", "", *_table(still), "", "</details>"]
    parts += ["", "Mean rank: 0 nearest to the truth, 0.5 chance. p is adjusted over all cells (Holm).", ""]
    return "\n".join(parts)


def _table(findings: list) -> list[str]:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return lines + ["| " + " | ".join(_code(entry) for entry in row(finding)) + " |" for finding in findings]


def _code(text: str) -> str:
    """Names come from files: inside a code span neither HTML nor Markdown is read, given that it cannot be left."""
    return f"`{text.replace('`', chr(39)).replace('|', '/')}`" if text else ""


def _plain(text: str) -> str:
    return text.replace("<", "").replace("`", "")
