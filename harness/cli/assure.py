"""``harness assure``: a report of runs for data-protection officers, as a page or a PDF."""

import os
import shutil
import subprocess
import tempfile
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.base.errors import UsageError
from harness.cli.app import DONE, INVALID, app
from harness.cli.console import note
from harness.cli.options import one_line
from harness.reports.html import read_runs
from harness.reports.html.assurance import (
    Stated,
    fault_of,
    make_assurance,
    require_alike,
    require_own_claims,
    require_whole,
)
from harness.reports.html.page import BEGINNING
from harness.reports.html.proofs import Claims
from harness.results import require_own, require_writable, write_atomic
from harness.results.files import Damaged, parse_json, read_bytes

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_SECONDS = 60


@app.command("assure")
def assure_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of harness evaluate and judge, of one system.")],
    out: Annotated[Path, typer.Option(help="File to write: .html, or .pdf by an installed Chromium.")] = Path(
        "assurance.html"
    ),
    system: Annotated[str, typer.Option(help="Name and version of the system, as you state it.")] = "",
    by: Annotated[str, typer.Option(help="Who tested it, as you state it.")] = "",
    review_by: Annotated[str, typer.Option(help="Date of the next review, as YYYY-MM-DD.")] = "",
    claims: Annotated[
        Path | None, typer.Option(help="File with the output of harness claims --json for the same defense.")
    ] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="Allow runs of several systems, suites or versions.")] = False,
) -> int:
    """Write a report for data-protection officers: what was tested, what was reconstructed, what is proven."""
    stated = Stated(one_line(system, "--system"), one_line(by, "--by"), _date(review_by))
    page = _page_of(out)
    document = _read_claims(claims)
    found = read_runs(runs)
    require_whole(found)
    if fault := fault_of(found):
        note(f"harness: no report is written: {fault}")
        return INVALID
    if not mixed:
        require_alike(found)
    require_own_claims(found, document)
    write_atomic(page, make_assurance(found, stated, document).encode())
    if page != out:
        _print(page, out)
    for run in found:
        for line in run.unproven:
            note(f"{run.name}: {line}")
    note(str(out))
    return DONE


def _date(words: str) -> str:
    """A date as it is written. Raises UsageError where it is none, or has passed."""
    if not words:
        return ""
    try:
        day = date.fromisoformat(words)
    except ValueError as error:
        raise UsageError(f"--review-by {words!r} is no date; write it as YYYY-MM-DD") from error
    if day < date.today():
        raise UsageError(f"--review-by {words} has passed; name a date to come")
    return day.isoformat()


def _page_of(out: Path) -> Path:
    """Return where the page goes: to ``out``, or beside a PDF. Raises UsageError where nothing can be written there."""
    if os.path.isdir(out):
        raise UsageError(f"{str(out)!r} is a folder; name a file with --out, such as {str(out / 'assurance.html')!r}")
    kind = out.suffix.lower()
    if kind not in (".html", ".pdf"):
        raise UsageError(f"--out {str(out)!r} ends in neither .html nor .pdf; end it so")
    if kind == ".pdf" and os.path.lexists(out):
        raise UsageError(f"{str(out)!r} is there already; move it away, or choose another file with --out")
    page = out.with_suffix(".html") if kind == ".pdf" else out
    require_writable(page)
    require_own(page, BEGINNING)
    return page


def _read_claims(path: Path | None) -> Claims:
    if path is None:
        return Claims()
    how = "write it with: harness claims NAME --json"
    try:
        document: Any = parse_json(read_bytes(path))
    except Damaged as problem:
        raise UsageError(f"--claims {str(path)!r} {problem}; {how}") from problem
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows or not all(_is_claim(row) for row in rows):
        raise UsageError(f"--claims {str(path)!r} is no output of harness claims; {how}")
    return Claims(tuple(rows))


def _is_claim(row: object) -> bool:
    """Return whether a row has what the report says of it, each of its kind."""
    if not isinstance(row, dict) or not {"defense", "unit", "adjacency", "view", "rounds"} <= row.keys():
        return False
    numbers = [row.get(name) for name in ("claimed_epsilon", "claimed_delta", "epsilon", "delta", "mu")]
    conditions = row.get("conditions") or {}
    lists = [row.get("warnings") or [], row.get("remarks") or []]
    lists += [conditions.get(name) or [] for name in ("fails", "unknown")] if isinstance(conditions, dict) else [None]
    return all(one is None or (isinstance(one, int | float) and one >= 0) for one in numbers) and all(
        isinstance(one, list) for one in lists
    )


def _print(page: Path, out: Path) -> None:
    """The page as a PDF, by a browser. Raises UsageError where there is none, or it fails; the page is kept."""
    named = os.environ.get("CHROMIUM")
    browser = next(filter(None, map(shutil.which, [named] if named else _BROWSERS)), None)
    kept = f"the page is {str(page)!r}"
    if browser is None:
        raise UsageError(f"a PDF needs Chromium (apt-get install chromium, or name one in $CHROMIUM); {kept}")
    with tempfile.TemporaryDirectory() as profile:
        made = Path(profile, "page.pdf")
        command = [
            browser, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-pdf-header-footer",
            f"--user-data-dir={profile}", f"--print-to-pdf={made}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), page.absolute().as_uri(),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True)
            content = made.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise UsageError(f"{browser} did not print a PDF; print the page from a browser, {kept}") from error
    write_atomic(out, content)
