"""``harness export``: results as a file for another program, by its public format."""

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, INVALID, app
from harness.cli.console import note
from harness.cli.options import one_line
from harness.cli.sketch import among
from harness.reports.html import read_runs
from harness.reports.html.assurance import fault_of, require_alike, require_whole
from harness.reports.html.export import FORMATS, Exported
from harness.results import require_writable, write_atomic

_To = typer.Option("--to", "--format", help=f"{', '.join(FORMATS)}.", autocompletion=among(list(FORMATS)))


@app.command("export")
def export_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of harness evaluate and judge.")],
    out: Annotated[Path, typer.Option(help="File to write; its ending names the format unless --to does.")],
    to: Annotated[str | None, _To] = None,
    system: Annotated[str, typer.Option(help="Name and version of the system, as you state it.")] = "",
    by: Annotated[str, typer.Option(help="Who tested it, as you state it.")] = "",
    mixed: Annotated[bool, typer.Option("--mixed", help="Allow runs of several suites or versions.")] = False,
) -> int:
    """Write results as a file for another program: a table, a test report, alerts, a registry's record."""
    _require_free(out)
    name = _format_of(to, out)
    stated = [one_line(words, option) for words, option in ((system, "--system"), (by, "--by"))]
    found = read_runs(runs)
    require_whole(found)
    if fault := fault_of(found):
        note(f"harness: nothing is exported: {fault}")
        return INVALID
    chosen = FORMATS[name]
    if not mixed:
        require_alike(found, ("versions of the harness", "suites"))
    if chosen.one:
        require_alike(found, ("systems",), "name runs of one system, or choose another format with --to")
    write_atomic(out, chosen.write(Exported(found, *stated)))
    for run in found:
        for line in run.unproven:
            note(f"{run.name}: {line}")
    note(str(out))
    return DONE


def _format_of(to: str | None, out: Path) -> str:
    """The format by its name, or by the file's ending. Raises UsageError where neither says one."""
    if to is not None:
        if to not in FORMATS:
            raise UsageError(f"unknown format {to!r}; choose {', '.join(FORMATS)}")
        return to
    for name, form in FORMATS.items():
        if out.name.lower().endswith(form.endings):
            return name
    endings = ", ".join(ending for form in FORMATS.values() for ending in form.endings)
    raise UsageError(f"--out {str(out)!r} ends in no known format ({endings}); name the format with --to")


def _require_free(out: Path) -> None:
    """Raises UsageError where something stands at ``out``, or nothing can be written there."""
    if os.path.isdir(out):
        raise UsageError(f"{str(out)!r} is a folder; name a file with --out")
    if os.path.lexists(out):
        raise UsageError(f"{str(out)!r} is there already; move it away, or choose another file with --out")
    require_writable(out)
