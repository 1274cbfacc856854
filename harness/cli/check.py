"""``harness check``: hold a run to a committed baseline; the regression gate of a nightly build."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.cli.app import DONE, INCOMPARABLE, REGRESSION, app
from harness.cli.console import tell
from harness.cli.options import JsonOption, with_output
from harness.gate import Finding, Report, as_baseline, check, read_baseline, read_runs, write_baseline
from harness.gate.comparing import VICTIMS_NEEDED
from harness.reports.gate import gate_junit, gate_markdown, gate_sarif, print_gate
from harness.results import require_writable, write_atomic

_WIDTH = 130


@app.command("check")
@with_output
def check_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders that harness evaluate wrote; equal cells are pooled.")],
    baseline: Annotated[Path, typer.Option(help="The baseline file.")],
    update: Annotated[bool, typer.Option("--update", help="Make the baseline from these runs instead.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit XML file.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write a Markdown summary.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write failures as alerts in SARIF 2.1.0.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Fail (exit code 1) if a defense is less resilient than the baseline, or an attack is broken."""
    for place, option in (
        (junit, "--junit"), (summary, "--summary"), (sarif, "--sarif"), (baseline if update else None, "--baseline"),
    ):  # fmt: skip
        if place is not None:
            require_writable(place, option)
    if update:
        return _update(baseline, *read_runs(runs, only_today=True), as_json)
    try:
        found = read_runs(runs, only_today=True)
        report = check(read_baseline(baseline), *found)
    except UsageError as error:
        # A build that looks at the files only has to learn of it too.
        _write(Report([Finding("invalid run", "", "", str(error))]), baseline, junit, summary, sarif)
        raise
    _write(report, baseline, junit, summary, sarif)
    tell(report.document(), as_json, lambda console: print_gate(report, console), _WIDTH)
    if report.only_incomparable:
        return INCOMPARABLE
    return REGRESSION if report.failed else DONE


def _write(report: Report, baseline: Path, junit: Path | None, summary: Path | None, sarif: Path | None) -> None:
    if junit:
        write_atomic(junit, gate_junit(report), "--junit")
    if summary:
        write_atomic(summary, gate_markdown(report).encode(), "--summary")
    if sarif:
        write_atomic(sarif, gate_sarif(report, baseline), "--sarif")


def _update(path: Path, cells: list, versions: dict, problems: list[str], as_json: bool) -> int:
    cells = make_baseline(path, cells, versions, problems)
    if as_json:
        sys.stdout.write(json.dumps({"baseline": str(path), "cells": len(cells)}) + "\n")
    else:
        victims = plural(sum(len(cell.victims) for cell in cells), "victim")
        print(f"{path}: {plural(len(cells), 'cell')}, {victims}")
    return DONE


def make_baseline(path: Path, cells: list, versions: dict, problems: list[str]) -> list:
    """Write the baseline. Returns its cells.

    Raises:
        UsageError: later runs could not be held to it, or it cannot be written.
    """
    if problems:
        raise UsageError(f"no baseline is made of a faulty run: {problems[0]}; run harness evaluate again")
    cells = [cell for cell in cells if not cell.settled_by]
    few = [cell for cell in cells if len(cell.victims) < VICTIMS_NEEDED]
    if few or not cells:
        who = f"{few[0].title} has {len(few[0].victims)} victims" if few else "the runs have no cell"
        raise UsageError(
            f"{who}, and a baseline needs {VICTIMS_NEEDED}; evaluate again with --victims {VICTIMS_NEEDED}"
        )
    write_baseline(path, as_baseline(cells, versions))
    return cells
