"""``harness verify``: make a board's row again from its card, and say whether it comes out as it says."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from harness.base.errors import UsageError, printable
from harness.board import compare, read_card, rebuild
from harness.board.comparing import Workspace
from harness.cli.app import DONE, REGRESSION, app, print_json, resumable
from harness.cli.options import ChunkOption, DataRootOption, JsonOption
from harness.datasets import data_root as find_data_root
from harness.results import claimed

_MOST = 12


@app.command("verify")
def verify_command(
    card: Annotated[Path, typer.Argument(help="A card that harness site wrote.")],
    statistically: Annotated[
        bool, typer.Option("--statistically", help="Compare statistically, as for another processor.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the new results (a temporary one).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out: files there are trusted and not computed again.")
    ] = False,
    chunk: ChunkOption = 128,
    data_root: DataRootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compute a card's row again. Exit code 1 if it differs; every difference is named."""
    if resume and out is None:
        raise UsageError("--resume goes on in a folder; name it with --out")
    there = read_card(card)
    if there.status == "unreliable":
        raise UsageError(f"the card says itself that nothing may be claimed ({there.reason}); take another card")
    root = find_data_root(data_root)
    with resumable(), tempfile.TemporaryDirectory() as scratch:
        folder = out or Path(scratch)
        with claimed(folder):
            found = compare(there, rebuild(there, Workspace(root, folder, chunk, resume)), statistically)
    if resume:
        found.notes.append(f"what lay in {str(out)!r} before was believed: it tells as much as you trust its maker")
    if as_json:
        said = {"confirmed": not found.differences, "exact": found.exact, "notes": found.notes}
        print_json(said | {"differences": found.differences})
    else:
        for line in (*found.notes, *found.differences[:_MOST]):
            print(printable(line))
        if len(found.differences) > _MOST:
            print(f"and {len(found.differences) - _MOST} more")
        how = "byte by byte" if found.exact else "statistically"
        print(f"DIFFERS from the row computed again: {card}" if found.differences else f"confirmed, {how}: {card}")
    return REGRESSION if found.differences else DONE
