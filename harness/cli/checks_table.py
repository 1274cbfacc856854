"""The tables of the checks that ``harness judge`` makes of a declared defense, and of the checks themselves."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.app import DONE, INVALID
from harness.judging.evidence import Check
from harness.judging.suite import run_case, summary
from harness.judging.suite_cases import suite_cases
from harness.progress import progress

_COLOURS = {"holds": "green", "violated": "red", "more than declared": "yellow", "cannot tell": "yellow"}
_WIDTH = 150


def print_checks(checks: list[Check], console: Console) -> None:
    """One row per check."""
    table = Table(title="Is what was sent what is declared?", title_justify="left")
    for name in ("check", "outcome", "what was seen"):
        table.add_column(name, overflow="fold")
    for check in checks:
        table.add_row(check.name, Text(check.outcome, style=_COLOURS[check.outcome]), Text(check.detail))
    console.print(table)


def judge_suite(data_root: Path, as_json: bool) -> int:
    """Checks honest clients and planted mistakes, and says how many were accused and named."""
    cases, found = suite_cases(), []
    with progress("cases", len(cases)) as bar:
        for case in cases:
            found.append(run_case(case, data_root))
            bar.advance(1, case.about)
    counts = summary(cases, found)
    if as_json:
        rows = [
            {
                "case": case.about, "declared": case.declared.model_dump(mode="json"), "expected": case.expected,
                "as_expected": case.as_expected(checks), "checks": [asdict(check) for check in checks],
            }
            for case, checks in zip(cases, found, strict=True)
        ]  # fmt: skip
        sys.stdout.write(json.dumps({"summary": counts, "cases": rows}, indent=1) + "\n")
        return DONE if counts["passed"] else INVALID
    table = Table()
    for name in ("case", "declared", "found", ""):
        table.add_column(name, overflow="fold")
    for number, (case, checks) in enumerate(zip(cases, found, strict=True)):
        if number == counts["honest"]:
            table.add_section()
        said = "; ".join(f"{check.name}: {check.outcome}" for check in case.alarms(checks)) or "no alarm"
        expected = "as it should" if case.as_expected(checks) else f"expected: {case.expected or 'no alarm'}"
        table.add_row(*map(Text, (case.about, case.declared.name, said, expected)))
    console = Console(width=max(Console().width, _WIDTH))
    console.print(table)
    console.print(
        Text(
            f"honest: {counts['alarms']} of {counts['honest']} accused (at most {counts['allowed']} may be). planted: "
            f"{counts['named']} of {counts['planted']} named. {'passed' if counts['passed'] else 'FAILED'}"
        )
    )
    return DONE if counts["passed"] else INVALID
