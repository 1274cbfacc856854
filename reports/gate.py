"""Findings of the gate, as a table, as Markdown, JUnit and SARIF; two runs or many nights beside each other."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.gate import Finding, Report
from harness.gate.contrast import Contrast, Difference
from harness.gate.trend import Trend
from harness.reports.machines import Alert, Case, address, junit, sarif
from harness.reports.pictures import drawable, plain_text
from harness.reports.text import MISSING, number, percent, safe
from harness.results import write_atomic

# The words and numbers of the regression gate, for its table, its Markdown summary and its JUnit file.

#: Beside a batch the first is another number than the share of its examples, which other tables have.
_MEANING = "success: share of victims with a reconstructed example; mean rank: 0 is nearest to the truth, 0.5 is chance"
COLUMNS = ("what", "cell", "success", "mean rank", "log RMSE", "p", "victims")


def shown(report: Report, everything: bool = False) -> list[Finding]:
    """Return what is worth a line: everything but the cells that did not move."""
    return [finding for finding in report.findings if everything or finding.kind != "unmoved"]


def row(finding: Finding) -> tuple[str, ...]:
    """A finding as the texts of COLUMNS; where there are no numbers the detail stands beside the cell."""
    moved = finding.movement
    if moved is None:
        cell = f"{finding.cell}: {finding.detail}" if finding.cell else finding.detail
        return (finding.kind, safe(cell, 200), "", "", "", "", "")
    success, error = (
        _arrow(*map(percent, moved.asr)), _arrow(*(number(one, 2) for one in moved.log_rmse)),
    ) if moved.reconstructs else (MISSING, MISSING)  # fmt: skip
    return (
        finding.kind,
        safe(finding.cell),
        success,
        _arrow(number(moved.rank[0], 2), number(moved.rank[1], 2)),
        error,
        "" if finding.p is None else f"{finding.p:.2g}",
        f"{moved.victims} {moved.pairing}",
    )


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


# The regression gate for other programs: a test case per cell, so that any CI service shows which one failed, and an
# alert per finding that fails, so that a repository's security page does.

_FAULTS = ("regression", "broken attack", "invalid run")


def gate_junit(report: Report) -> bytes:
    """The XML document. Regressions, broken attacks are failures; what could not be compared is an error."""
    return junit("harness check", [_case(finding) for finding in report.findings])


def _case(finding: Finding) -> Case:
    outcome = "failure" if finding.kind in _FAULTS else "error" if finding.fails else "passed"
    outcome = "skipped" if finding.kind == "extra" else outcome
    return Case(f"gate.{finding.dataset or 'run'}", finding.cell or "the run", outcome, finding.kind, words(finding))


def gate_sarif(report: Report, baseline: Path) -> bytes:
    """An alert for everything that fails, at the file of the baseline."""
    alerts = [
        Alert(finding.kind.replace(" ", "-") if finding.kind in _FAULTS else "not-compared",
              "error" if finding.kind in _FAULTS else "warning", safe(finding.cell or "the run", 300),
              words(finding), address(baseline))
        for finding in report.findings
        if finding.fails
    ]  # fmt: skip
    return sarif(alerts)


def words(finding: Finding) -> str:
    return "; ".join(f"{title} {text}" for title, text in zip(COLUMNS, row(finding), strict=True) if text)


# The regression gate as a Markdown summary, such as a CI service shows under a job.


def gate_markdown(report: Report) -> str:
    """The headline, a table of what moved, and the unmoved cells folded away."""
    parts = [f"## Regression gate: {_plain(report.headline)}", ""]
    findings = shown(report)
    if findings:
        parts += [*_table(findings), ""]
    still = report.of("unmoved")
    if still:
        parts += [
            f"<details><summary>{plural(len(still), 'cell')} did not move</summary>",
            "",
            *_table(still),
            "",
            "</details>",
        ]
    parts += ["", f"S{_MEANING[1:]}; p is adjusted over all cells (Holm).", ""]
    return "\n".join(parts)


def _table(findings: list) -> list[str]:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return lines + ["| " + " | ".join(_code(entry) for entry in row(finding)) + " |" for finding in findings]


def _code(text: str) -> str:
    """Names come from files: inside a code span neither HTML nor Markdown is read, given that it cannot be left."""
    return f"`{text.replace('`', chr(39)).replace('|', '/')}`" if text else ""


def _plain(text: str) -> str:
    return text.replace("<", "").replace("`", "")


# The regression gate in a terminal: one line of outcome, and a short table of what moved and by how much.

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
    console.print(Text(f"{_MEANING}; p is adjusted over all cells (Holm)", "dim"))


# Two runs or two defenses side by side, for people.


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
    console.print(Text(f"B - A with 95% intervals, not corrected for many tests; {_MEANING}"))
    for title in alone:
        console.print(Text(f"only in one run: {safe(title)}"))
    for problem in problems:
        console.print(Text(safe(problem, 300)))


def _shown(value: Difference) -> Text:
    if value.difference is None or value.ci95 is None:
        return Text(MISSING)
    low, high = value.ci95
    clear = low > 0 or high < 0
    return Text(f"{value.difference:+.2f} [{low:+.2f}, {high:+.2f}]", style="bold" if clear else "")


FORMATS = ("svg", "png", "pdf")
_COLUMNS, _WIDTH, _HEIGHT = 3, 4.2, 2.1  # a panel's size in inches
_ASR, _RANK = "#1f77b4", "#d62728"
_SHOWN, _TICKS = 6, 5
_MOST_PANELS = 60


def print_history(names: Sequence[str], trends: Sequence[Trend], console: Console) -> None:
    """Prints success and mean rank of each cell in the last runs, the cells that moved most first."""
    table = Table("cell", "measure", *(safe(name, 20) for name in names[-_SHOWN:]), "moved")
    for trend in trends:
        columns = {
            "success": [point.asr for point in trend.points], "mean rank": [point.mean_rank for point in trend.points],
        }  # fmt: skip
        for what, found in columns.items():
            known = [value for value in found if value is not None]
            shown = [percent(value) if what == "success" else number(value, 2) for value in found[-_SHOWN:]]
            moved = number(max(known) - min(known), 2) if len(known) > 1 else MISSING
            if known:
                table.add_row(Text(safe(trend.title, 300)), what, *shown, moved)
    console.print(table)
    said = "success: share of examples that were reconstructed; mean rank: 0 is nearest to the truth, 0.5 is chance"
    console.print(Text(f"{said}; moved: largest minus smallest, over all runs"))


def save_history(path: Path, names: Sequence[str], trends: Sequence[Trend]) -> None:
    """Draw success (with its 95% interval) and mean rank over the runs, a panel for each of the first 60 cells.

    Args:
        path: ends in .svg, .png or .pdf.
        names: of the runs, in order.
        trends: at least one.

    Raises:
        UsageError: another kind of file, or the folder cannot be written.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UsageError(f"cannot draw {str(path)!r}; let --out end in .svg, .png or .pdf")
    every, trends = len(trends), trends[:_MOST_PANELS]
    rows = math.ceil(len(trends) / _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _WIDTH, rows * _HEIGHT + 0.5), layout="constrained")
    panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for panel, trend in zip(panels, trends, strict=False):
        _draw(panel, trend, names)
    for panel in panels[len(trends) :]:
        panel.set_visible(False)
    cut = f"; the {len(trends)} of {every} cells that moved most" if every > len(trends) else ""
    title = f"success rate (blue, 95% interval) and mean rank of the truth (red, 0.5 is chance){cut}"
    figure.suptitle(title, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=100)
    write_atomic(path, buffer.getvalue())


def _draw(panel: Axes, trend: Trend, names: Sequence[str]) -> None:
    places = range(len(names))
    asr = [math.nan if point.asr is None else point.asr for point in trend.points]
    rank = [math.nan if point.mean_rank is None else point.mean_rank for point in trend.points]
    bands = [point.ci95 or (math.nan, math.nan) for point in trend.points]
    low, high = (np.array([band[end] for band in bands], dtype=float) for end in (0, 1))
    panel.fill_between(places, low, high, color=_ASR, alpha=0.15)
    panel.plot(places, asr, color=_ASR, marker="o", markersize=3)
    panel.plot(places, rank, color=_RANK, marker="s", markersize=3, linestyle="--")
    panel.set(xlim=(-0.3, len(names) - 0.7), ylim=(-0.03, 1.03))
    panel.set_title(drawable(safe(trend.title, 74)), fontsize=7, **plain_text())
    ticks = [*places][:: max(1, math.ceil(len(names) / _TICKS))]
    panel.set_xticks(ticks, [drawable(safe(names[tick], 14)) for tick in ticks], fontsize=6, **plain_text())
    panel.tick_params(axis="y", labelsize=6)
    panel.grid(alpha=0.3)
