"""What is kept of the accuracy at full scale after every run: the table, and the commands that make its runs."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.papers.comparison import Comparison
from harness.progress import in_words
from harness.reproduction.fed_acdp.full_cells import AS_PRINTED, RELEASED, Cell, command
from harness.reproduction.fed_acdp.full_runs import FullRuns, Standing
from harness.storage.atomic import write_atomic

_NAME = "full-accuracy"
_WIDTH = 170


def keep(runs: FullRuns, table: Comparison, cells: Iterable[Cell], folder: Path) -> None:
    """Writes ``full-accuracy.txt`` and ``full-accuracy.json``: the table, and the cells' runs with their commands."""
    listed = [_listed(runs, cell, one) for cell in cells for one in runs.standings(cell) if _belongs(cell, one)]
    text = io.StringIO()
    table.print(Console(file=text, width=_WIDTH))
    text.write("\nRuns and the commands that make them:\n")
    for one in listed:
        text.write(f"{one['data']}, {one['method']}, {one['noise']}: {one['state']}\n    {one['command']}\n")
    printed = "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
    write_atomic(folder / f"{_NAME}.txt", printed.encode())
    write_atomic(folder / f"{_NAME}.json", json.dumps(table.document() | {"runs": listed}, indent=1).encode())


def _belongs(cell: Cell, run: Standing) -> bool:
    """Runs that every row has, begun or not; of the other levels of noise those that were tried."""
    return cell.sigma in (AS_PRINTED, 0.0, RELEASED) or bool(run.rounds) or run.over


def _listed(runs: FullRuns, cell: Cell, one: Standing) -> dict[str, Any]:
    left = runs.left(cell, one)
    return {
        "data": cell.data, "method": cell.name, "noise": cell.noise, "seed": one.settings.seed,
        "accuracy": one.accuracy, "rounds": len(one.rounds), "of": one.settings.rounds, "over": one.over,
        "seconds_per_round": one.pace, "seconds_left": left, "state": _state(one, left),
        "command": command(one.settings, runs.folder(one.settings)),
    }  # fmt: skip


def _state(run: Standing, left: float | None) -> str:
    if run.over:
        return f"{run.accuracy:.4f}" if run.document else f"diverged after {len(run.rounds)} rounds"
    to_go = "" if left is None else f", {in_words(left)} to go"
    begun = "" if run.accuracy is None else f"{run.accuracy:.4f} "
    return f"{begun}after {len(run.rounds)} of {run.settings.rounds} rounds{to_go}"
