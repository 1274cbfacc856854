"""The tables of the checks that ``harness judge`` makes of a declared defense, and of the checks themselves."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.capture.reading import Capture
from harness.cli.app import DONE, INVALID
from harness.cli.console import Screen
from harness.datasets.public import NONE
from harness.errors import UsageError
from harness.judging.declared import groups_of
from harness.judging.evidence import Check, pooled
from harness.judging.federation import federations
from harness.judging.judgement import checks_without_truth
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


def judge_checks(captures: Sequence[Capture], title: str, as_json: bool) -> int:
    """Checks the declared defense of captured clients, and nothing else.

    Raises:
        UsageError: none is declared.
    """
    clients = federations(captures, attacked=False)
    if clients[0].record.defense is None:
        raise UsageError(
            "no defense is declared, so there is nothing to check; name it in capture.json, such as "
            '"defense": {"name": "LocalDpMod", "settings": {"clipping_norm": 1, ...}}, or drop --checks-only'
        )
    if clients[0].foreign:
        sys.stderr.write(
            f"harness: {clients[0].record.model!r} has not all that was sent, such as adapters: checked as they stand "
            "in the files, without what needs the network's layers\n"
        )
    groups = groups_of(clients, title, ["cpl"], NONE, "cpu")
    checks = pooled([(group.sizes, checks_without_truth(group)) for group in groups])
    violated = any(check.outcome == "violated" for check in checks)
    if as_json:
        document = {
            "valid": not violated, "captures": sum(one.clients for one in clients),
            "record": clients[0].record.model_dump(mode="json"),
            "checks": [asdict(check) for check in checks],
        }  # fmt: skip
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        print_checks(checks, Screen())
    return INVALID if violated else DONE


def judge_suite(data_root: Path, as_json: bool) -> int:
    """Checks honest clients and planted mistakes, and says how many were accused and named."""
    cases, found = suite_cases(), []
    with progress("cases", len(cases)) as bar:
        for case in cases:
            # The honest are held against more, and what is planted is named by less.
            found.append(run_case(case, data_root, truth=case.expected is None))
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
    console = Screen(_WIDTH)
    console.print(table)
    console.print(
        Text(
            f"honest: {counts['alarms']} of {counts['honest']} accused (at most {counts['allowed']} may be). planted: "
            f"{counts['named']} of {counts['planted']} named. {'passed' if counts['passed'] else 'FAILED'}"
        )
    )
    return DONE if counts["passed"] else INVALID
