"""``harness report``: one page from the folders of runs, or its tables as files for papers and spreadsheets."""

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, app
from harness.cli.console import note
from harness.cli.sketch import among
from harness.reports.html import all_tables, make_page, read_runs, unread, with_trainings, without_collecting
from harness.reports.html import table as formats
from harness.results import require_writable, write_atomic

_ENDINGS = {"html": "html", "md": "md", "csv": "csv", "latex": "tex", "json": "json"}


@app.command("report")
@without_collecting()
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of harness evaluate, frontier, judge and train.")],
    out: Annotated[Path | None, typer.Option(help="File to write (report.html); for csv a folder.")] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option(help="A folder of an earlier run, for the trend section only; repeated.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="html, or every table as md, csv, latex or json (as --out ends, else html).",
            autocompletion=among(list(_ENDINGS)),
        ),
    ] = None,
) -> int:
    """Make a report of runs: what leaks where, pictures, figures, privacy statements, and commands."""
    form = _form_of(out) if form is None else form
    if form not in _ENDINGS:
        raise UsageError(f"unknown format {form!r}; choose {', '.join(_ENDINGS)}")
    place = out or Path("report" if form == "csv" else f"report.{_ENDINGS[form]}")
    if form != "csv" and os.path.isdir(place):
        raise UsageError(f"{str(place)!r} is a folder; name a file with --out, such as {str(place / 'report.html')!r}")
    require_writable(place / "cells.csv" if form == "csv" else place)
    found, before = with_trainings(read_runs(runs)), read_runs(earlier) if earlier else []
    if form == "csv":
        for table in all_tables(found, before):
            # With its mark at the start a spreadsheet reads it as UTF-8.
            write_atomic(place / f"{table.name}.csv", formats.comma_separated(table).encode("utf-8-sig"))
    else:
        write_atomic(place, _content(form, found, before).encode())
    for run in [*unread(before), *found]:
        for line in (*run.told, *run.unproven):
            note(f"{run.name}: {line}")
        for reason in run.left_out:
            note(f"left out: {run.name}: {reason}")
    note(str(place))
    return DONE


def _form_of(out: Path | None) -> str:
    """The format that a file's ending asks for. Raises UsageError: of an ending that is none, or of several files."""
    ending = "" if out is None or os.path.isdir(out) else out.suffix.lower().removeprefix(".")
    form = next((form for form, own in _ENDINGS.items() if ending == own), "html" if ending in ("", "htm") else None)
    if form == "csv":
        raise UsageError(
            f"--out {str(out)!r} is one file, and csv is one for each table; name a folder, with --format csv"
        )
    if form is None:
        known = ", ".join(f".{own}" for own in _ENDINGS.values() if own != "csv")
        raise UsageError(f"--out {str(out)!r} ends in none of {known}; end it so, or add --format")
    return form


def _content(form: str, runs: list, earlier: list) -> str:
    if form == "html":
        return make_page(runs, earlier)
    return {"md": formats.markdown, "latex": formats.latex, "json": formats.as_json}[form](all_tables(runs, earlier))
