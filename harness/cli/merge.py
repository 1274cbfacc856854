"""``harness merge``: the shards of a run as one run."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import DONE, INVALID, app
from harness.cli.evaluate import show
from harness.parallel.plan import merge
from harness.reports.success_curves import save_curves
from harness.results import RunFolder, claimed


@app.command("merge")
def merge_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of the shards: one for all, or one for each.")],
    out: Annotated[Path, typer.Option(help="Folder of the combined run; may be the shards' folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result document and nothing else.")] = False,
) -> int:
    """Combine the shards of a run, and compute its verdicts."""
    with claimed(out):
        document = merge(runs, out)
        save_curves(RunFolder(out).pictures, document.cells)
    show(document, as_json, out)
    return DONE if document.valid else INVALID
