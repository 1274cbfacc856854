"""The tables of the checks that ``harness judge`` makes of a declared defense."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.capture.reading import Capture
from harness.cli.app import DONE, INVALID
from harness.datasets.public import NONE
from harness.errors import UsageError
from harness.judging.checks import checks_of
from harness.judging.declared import cells_of
from harness.judging.evidence import Check, Evidence
from harness.judging.federation import gathered
from harness.judging.no_signal import fits_facts

_COLOURS = {"holds": "green", "violated": "red", "more than declared": "yellow", "cannot tell": "yellow"}


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
    captured = gathered([replace(capture, truth=None) for capture in captures], attacked=False)
    if captured.record.defense is None:
        raise UsageError(
            "no defense is declared, so there is nothing to check; name it in capture.json, such as "
            '"defense": {"name": "LocalDpMod", "settings": {"clipping_norm": 1, ...}}, or drop --checks-only'
        )
    (settings,) = cells_of(captured, title, ["cpl"], NONE, "cpu")
    # What Adam sends is no sum of gradients, whose ranks are known.
    fits = fits_facts(Evidence(captured, settings)) if captured.record.optimizer == "sgd" else None
    checks = [*([fits] if fits else []), *checks_of(captured, settings)]
    violated = any(check.outcome == "violated" for check in checks)
    if as_json:
        document = {
            "valid": not violated, "captures": captured.clients, "record": captured.record.model_dump(mode="json"),
            "checks": [asdict(check) for check in checks],
        }  # fmt: skip
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        print_checks(checks, Console())
    return INVALID if violated else DONE
