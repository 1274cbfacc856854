"""``harness history``: how every number moved over the runs of several nights."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from harness.base.errors import UsageError, safe
from harness.cli.app import DONE, app
from harness.cli.console import tell
from harness.cli.options import JsonOption, with_output
from harness.gate.trend import Trend, trends
from harness.reports.gate import print_history, save_history
from harness.results import require_writable

_WIDTH = 140


@app.command("history")
@with_output
def history_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, oldest first.")],
    out: Annotated[Path | None, typer.Option(help="Draw to this .svg, .png or .pdf file.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show how success rates and lineup ranks change from run to run; the largest changes come first."""
    if out:
        require_writable(out)
    names, found, left_out, problems = trends(runs)
    if not found:
        raise UsageError("the runs hold no cell that could be evaluated; run harness evaluate again")
    if out:
        save_history(out, names, found)
    document = {"runs": names, "trends": list(map(asdict, found)), "left_out": left_out, "problems": problems}
    told = [*(f"left out: {reason}" for reason in left_out), *problems]
    tell(document, as_json, lambda console: _print(console, names, found, told), _WIDTH)
    return DONE


def _print(console: Console, names: Sequence[str], found: Sequence[Trend], told: Sequence[str]) -> None:
    print_history(names, found, console)
    for line in told:
        console.print(Text(safe(line, 300)))
