"""The tables of the checks that ``harness judge`` makes of a declared defense."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.base.errors import UsageError
from harness.cli.app import DONE, INVALID
from harness.cli.console import Screen
from harness.datasets.public import NONE
from harness.judging.capture import Capture
from harness.judging.declared import groups_of
from harness.judging.evidence import Check, pooled
from harness.judging.federation import federations
from harness.judging.judgement import checks_without_truth

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
