"""``harness site``: a public board of runs, in static pages."""

from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError
from harness.base.kinds import plural
from harness.board import collect
from harness.cli.app import DONE, app
from harness.cli.console import note
from harness.reports.html.page import BEGINNING
from harness.reports.html.site import make_site
from harness.results import require_own, require_writable, write_atomic


@app.command("site")
def site_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of harness evaluate, frontier, reproduce and train.")],
    out: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("public"),
) -> int:
    """Make a static board of runs. Each row has a card that anybody can verify."""
    require_writable(out / "index.html")
    require_own(out / "index.html", BEGINNING)
    found = collect(runs)
    if not found.cards:
        why = f" ({found.left_out[0]})" if found.left_out else ""
        raise UsageError(f"there is no row for a board{why}; give folders of harness evaluate")
    for name, content in make_site(found.cards, found.left_out).items():
        write_atomic(out / name, content)
    for line in found.left_out:
        note(f"left out: {line}")
    note(f"{out / 'index.html'}: {plural(len(found.cards), 'row')}")
    return DONE
