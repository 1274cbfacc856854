"""The paper's accuracy at its own scale: under the printed noise, without noise, and under the most that still learns.

Every run lies in a folder of its own and is made by a command of its own, so that several processes or machines may
share them out; the table is written after each run, and says of the others how long they would take.
"""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.base.progress import in_words, within
from harness.papers.accuracy import NOTES
from harness.papers.comparison import Comparison
from harness.papers.full_runs import (
    AS_PRINTED,
    BOUNDED,
    DATASETS,
    LADDER,
    METHODS,
    RELEASED,
    Cell,
    FullRuns,
    Standing,
    command,
    has_noise,
)
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, SeededRuns
from harness.results.atomic import write_atomic
from harness.study.runner import Request
from harness.training import TrainDocument

#: Accuracy that noise may cost where it counts as learned, and that may lie between ours and the printed one.
MARGIN = 0.05
WITHOUT_NOISE, OPEN = "without noise", "-"
_AT_RELEASED = f"σ={RELEASED:g}"
QUICK_DATASETS, QUICK_LADDER = DATASETS[:3], (1.0, 0.1, 0.01)


def full_scale(request: Request) -> Comparison:
    """Trains every cell, cheap datasets first, and keeps ``full-accuracy.txt`` and ``.json`` beside the runs."""
    table = _Table(request)
    try:
        for cell in table.work():
            table.runs.make(cell)
            table.keep()
    finally:
        table.keep()
    return table.comparison()


class _Table:
    def __init__(self, request: Request) -> None:
        self.request, self.runs = request, FullRuns(request)
        self.datasets = QUICK_DATASETS if request.quick else DATASETS
        self.ladder = QUICK_LADDER if request.quick else LADDER

    def work(self) -> Iterator[Cell]:
        """What is to be made next, until nothing is left."""
        for data in self.datasets:
            with within(data):
                yield from (Cell(data, method) for method in METHODS)
                yield from (Cell(data, method, 0.0) for method in METHODS if has_noise(method))
                for method in filter(has_noise, METHODS):
                    while (cell := self.most_noise(data, method)[0]) and self.unfinished(cell):
                        yield cell
                yield from self._released(data)

    def _released(self, data: str) -> Iterator[Cell]:
        """Runs at the released scripts' noise; --quick leaves them out."""
        if not self.request.quick:
            yield from (Cell(data, method, RELEASED) for method in METHODS if has_noise(method))
            yield from (cell for cell in BOUNDED if cell.data == data)

    def unfinished(self, cell: Cell) -> bool:
        """Whether something of a cell can be made and is not."""
        return bool(self.runs.settings(cell)) and self.runs.measured(cell) is None

    def most_noise(self, data: str, method: str) -> tuple[Cell | None, str]:
        """The level with the most noise that still learns, or the one to be tried next; else why there is none.

        What learns is taken to learn under less noise too: each run halves the levels that are left.
        """
        silent = self.runs.measured(Cell(data, method, 0.0))
        if silent is None:
            return None, ""
        if silent.mean <= silent.chance:
            return None, "not even ×0"
        cells = [Cell(data, method, sigma) for sigma in (AS_PRINTED, *self.ladder)]
        learns = [self._learns(cell, silent) for cell in cells]
        most = learns.index(True) if True in learns else len(cells)
        too_much = max((place for place in range(most) if learns[place] is False), default=-1)
        if most - too_much > 1:
            return cells[0 if too_much < 0 else (most + too_much) // 2], ""
        return (cells[most], "") if most < len(cells) else (None, f"none to {self.ladder[-1]:g}")

    def _learns(self, cell: Cell, silent: SeededRuns) -> bool | None:
        made = self.runs.measured(cell)
        return None if made is None else made.mean >= silent.mean - MARGIN and made.mean > made.chance

    def comparison(self) -> Comparison:
        """The table as far as it is made."""
        quick = "left out by --quick: LFW and CIFAR-10, and the other levels of noise" if self.request.quick else ""
        return Comparison(
            "Accuracy at the paper's scale: under its noise, without noise, and under the most that still learns",
            [
                *self.runs.header(*self.datasets),
                f"seeds: {', '.join(map(str, self.request.seeds))}; mean ± deviation where there are several",
                *([quick] if quick else []),
            ],
            [row for data in self.datasets for row in self._rows(data)],
            _NOTES,
        )

    def _rows(self, data: str) -> Iterator[dict[str, Any]]:
        yield from (self._row(Cell(data, method)) for method in METHODS)
        for cell in BOUNDED:
            if cell.data == data and not self.request.quick:
                blank = dict.fromkeys(self._row(Cell(data, cell.method)), "")
                shown = {"data": data, "method": cell.name, "paper": f"{cell.paper:.3f}", "verdict": OPEN}
                yield blank | shown | {_AT_RELEASED: self._text(cell)}

    def _row(self, cell: Cell) -> dict[str, Any]:
        data, method = cell.data, cell.method
        printed = self.runs.measured(cell)
        row = {"data": data, "method": method, "paper": f"{cell.paper:.3f}", "as printed": self._text(cell)}
        if not has_noise(method):
            blank = dict.fromkeys(
                ("noise ×0", _AT_RELEASED, "learns at", "accuracy", "claimed ε", "proven ε", "noise : update"), ""
            )
            return row | blank | {"verdict": self._verdict(cell, printed, printed)}
        silent, (most, why) = self.runs.measured(Cell(data, method, 0.0)), self.most_noise(data, method)
        measured = self.runs.measured(most) if most else None
        learns = why if most is None else most.noise if measured else "not run"
        document = self.runs.standings(most)[0].document if most and measured else None
        ratio = self.runs.noise_and_update(method, data)
        return row | {
            "noise ×0": self._text(Cell(data, method, 0.0)),
            _AT_RELEASED: self._text(Cell(data, method, RELEASED)), "learns at": learns,
            "accuracy": str(measured or ""), **_epsilons(document),
            "noise : update": f"{ratio[0]:.3g} : {ratio[1]:.3g}" if ratio else "",
            "verdict": self._verdict(cell, printed, silent),
        }  # fmt: skip

    def _text(self, cell: Cell) -> str:
        """The accuracy, or how far its runs are."""
        if not self.runs.settings(cell):
            return "-"
        made = self.runs.measured(cell)
        if made is not None:
            return str(made)
        begun = next((one for one in self.runs.standings(cell) if one.rounds and not one.over), None)
        if begun is None or begun.accuracy is None:
            return "not run"
        return f"{begun.accuracy:.3f} after {len(begun.rounds)} of {begun.settings.rounds}"

    def _verdict(self, cell: Cell, printed: SeededRuns | None, silent: SeededRuns | None) -> str:
        if not self.runs.settings(cell):
            return NOT_AT_HAND
        if printed is None:
            return OPEN
        if _reaches(cell, printed):
            return AGREES
        return OPEN if silent is None else (WITHOUT_NOISE if _reaches(cell, silent) else DIFFERS)

    def keep(self) -> None:
        """Writes the table as it stands, and every run with its command."""
        self.runs.look_again()
        keep(self.runs, self.comparison(), self._cells(), self.request.run.folder.path)

    def _cells(self) -> Iterator[Cell]:
        for data in self.datasets:
            for method in METHODS:
                levels = (AS_PRINTED, 0.0, *self.ladder) if has_noise(method) else (AS_PRINTED,)
                yield from (Cell(data, method, sigma) for sigma in levels)
            yield from self._released(data)


def _reaches(cell: Cell, made: SeededRuns) -> bool:
    return made.mean > made.chance and abs(made.mean - cell.paper) <= MARGIN


def _epsilons(document: TrainDocument | None) -> dict[str, str]:
    """What the paper's convention claims for this run, and the smallest that is proven for it, or the word for none."""
    if document is None:
        return {"claimed ε": "", "proven ε": ""}
    claims = [one.claimed_epsilon for one in document.privacy if one.claimed_epsilon is not None]
    proven = [(one.epsilon, one) for one in document.privacy if one.epsilon is not None]
    epsilon, held = min(proven, key=lambda pair: pair[0]) if proven else (None, None)
    return {
        "claimed ε": f"{claims[0]:.3g}" if claims else "-",
        "proven ε": f"{epsilon:.3g} ({held.unit}, {held.view})" if held else "none",
    }


_NOTES = [
    "as printed: sigma=6; for Fed-αCDP[σ] the exponential policy, which the paper calls its best, from 15.8 to 3; "
    "noise ×0: the same run, clipped as before, with sigma=0; nothing decays then, and Fed-αCDP[σ] is Fed-αCDP",
    f"learns at: the largest of the printed noise and then sigma {', '.join(f'{one:g}' for one in LADDER)} within "
    f"{100 * MARGIN:g} points of the row's own run without noise, and above chance; for Fed-αCDP[σ] the first sigma, "
    "which falls by the printed formula to a third of itself. Found by halving: the level above it was tried and does "
    "not learn. One rule for all rows, nothing is tuned",
    "claimed ε: by the paper's convention for the run that learns; proven ε: the tightest that holds for that run, and "
    "towards whom; none: nothing is proven, since the noise follows the private batch (Fed-αCDP), since columns "
    "were scaled by their private extremes (Cancer), or since a client holds an example twice",
    "noise : update: expected L2 norm of the printed noise in the first round's average of K updates, and that of a "
    "client's update without noise, which is at least the average's",
    f"agrees: within {100 * MARGIN:g} points of the paper as printed, and above chance; without noise: not so, but at "
    "×0 (less noise than printed may do as well); -: a run that says so is not over",
    f"σ={RELEASED:g}: the released scripts' noise; of Fed-αCDP[σ] the first one; C=8, 16 and 32: Table V's, at that "
    "noise alone",
    "the runs and their commands are listed beside the table; to go: by seconds per round here, beside other work",
    *NOTES,
]


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
