"""The paper's accuracy at its own scale: under the printed noise, without noise, and under the most that still learns.

A row is a method on a dataset. Rows do not need each other, so that shards and processes divide them. Each run lies in
a folder of its own, where ``--resume`` finds it, and the table is written after each.
"""

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.federation.privacy_facts import PrivacyFacts
from harness.papers.accuracy import CODE_SIGMA, NOTES, TABLE_5, TABLE_6_ACCURACY, Accuracies
from harness.papers.grid import Comparison, grid
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, SeededRuns
from harness.results.atomic import write_atomic
from harness.study.runner import Request, TrainedRuns
from harness.training import RoundRecord, TrainDocument, TrainSettings
from harness.training.chance import chance_level, parameters

#: Small ones first; a run may be stopped at any time.
DATASETS = ("cancer", "adult", "mnist", "lfw", "cifar10")
METHODS = ("non-private", "Fed-SDP", "Fed-CDP", "Fed-αCDP", "Fed-αCDP[σ]", "Quantile", "AdaClip")
#: Tried from the top, the same for every row.
LADDER = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
AS_PRINTED = None
#: Of the released scripts, tried for every row.
RELEASED = CODE_SIGMA
PRINTED_CLIP = 4.0

ADAPTIVE: dict[str, str] = grid("table10").facts["methods"]

# The printed schedules fall from 15 to 4.85 (Table VIII); one that starts lower keeps their shape.
_LEFT_AT_THE_END = 4.85 / 15

#: Accuracy that noise may cost where it counts as learned, and that may lie between ours and the printed one.
MARGIN = 0.05
WITHOUT_NOISE, OPEN = "without noise", "-"
_AT_RELEASED = f"σ={RELEASED:g}"
QUICK_DATASETS, QUICK_LADDER = DATASETS[:3], (1.0, 0.1, 0.01)
_NAME, _WIDTH = "full-accuracy", 170
# Levels that every row has; of the others those are listed that were tried.
_OF_EVERY_ROW = ("as printed", "no defense", "×0", f"σ={RELEASED:g}")


@dataclass(frozen=True)
class Cell:
    """A method on the paper's dataset; ``sigma``: its noise multiplier, the first one of Fed-αCDP[σ]; ``clip``: C."""

    data: str
    method: str
    sigma: float | None = AS_PRINTED
    clip: float = PRINTED_CLIP

    @property
    def name(self) -> str:
        """The method, with its C where that is another than the others'."""
        return self.method if self.clip == PRINTED_CLIP else f"{self.method}, C={self.clip:g}"

    @property
    def paper(self) -> float:
        """The printed accuracy."""
        if self.clip != PRINTED_CLIP:
            return TABLE_5[self.method, self.data, self.clip]
        found = TABLE_6_ACCURACY.get((self.method, self.data))
        if found is not None:
            return found
        row = next(row for row in grid("table10").printed() if row["data"] == self.data)
        return row["accuracies"][list(ADAPTIVE).index(self.method)]

    @property
    def noise(self) -> str:
        """The level in words."""
        if self.sigma is AS_PRINTED:
            return "as printed" if has_noise(self.method) else "no defense"
        return f"σ={self.sigma:g}" if self.sigma else "×0"

    def trained(self) -> tuple[str, dict[str, Any]]:
        """The name under which the tables train it, and what differs there."""
        name, changes = self._trained()
        return name, changes if self.clip == PRINTED_CLIP else changes | {"clip": self.clip}

    def _trained(self) -> tuple[str, dict[str, Any]]:
        name = ADAPTIVE.get(self.method, self.method)
        if self.sigma is None:
            return name, {}
        if name == self.method:
            return name, {"sigma": self.sigma}
        if self.sigma == 0:
            return "Fed-αCDP", {"sigma": 0.0}  # without noise nothing decays
        return name, {"schedule": "sigma", "sigma": self.sigma, "sigma_end": self.sigma * _LEFT_AT_THE_END}


#: Where Table V lets the noise grow: its four largest C, less the one that every row has.
BOUNDED = tuple(Cell("mnist", "Fed-SDP", RELEASED, clip) for clip in (8.0, 16.0, 32.0))


def has_noise(method: str) -> bool:
    """Return whether its row has other levels of noise beside the printed one."""
    return method != "non-private"


@dataclass(frozen=True)
class Standing:
    """One run: the rounds it has finished, and its document where it is over; ``over`` without one: it diverged."""

    settings: TrainSettings
    rounds: list[RoundRecord]
    document: TrainDocument | None
    over: bool

    @property
    def accuracy(self) -> float | None:
        """After the last of these rounds."""
        return self.rounds[-1].accuracy if self.rounds else None


class FullRuns:
    """The runs of cells, one per seed of the request: trained, or found in the folder."""

    def __init__(self, request: Request) -> None:
        self.request, self._accuracies, self._trained = request, Accuracies(request), TrainedRuns(request)
        self._diverged: set[Path] = set()
        self._settings: dict[Cell, list[TrainSettings]] = {}
        self._over: dict[Cell, list[Standing]] = {}

    def header(self, *datasets: str) -> list[str]:
        """Return what every table of accuracy says of its runs."""
        return self._accuracies.header(*datasets)

    def settings(self, cell: Cell) -> list[TrainSettings]:
        """One per seed; none where the dataset is not at hand."""
        if cell not in self._settings:
            name, changes = cell.trained()
            made = [
                self._accuracies.settings(name, cell.data, seed=seed, defense_args=changes)
                for seed in self.request.seeds
            ]
            self._settings[cell] = [one for one in made if one is not None]
        return self._settings[cell]

    def folder(self, settings: TrainSettings) -> Path:
        """Return the folder of the run of these settings."""
        return self._trained.folder(settings)

    def make(self, cell: Cell) -> None:
        """Trains what is not over yet."""
        for settings in self.settings(cell):
            if self._standing(settings).over:
                continue
            title = f"{cell.method}, {cell.noise}, on {cell.data}"
            if self._trained.document(title, settings) is None:
                self._diverged.add(self.folder(settings))

    def standings(self, cell: Cell) -> list[Standing]:
        """Return how far the cell's runs are."""
        if cell in self._over:
            return self._over[cell]
        found = [self._standing(settings) for settings in self.settings(cell)]
        if all(one.over for one in found):
            self._over[cell] = found
        return found

    def measured(self, cell: Cell) -> SeededRuns | None:
        """The cell's accuracies; None before all its runs are over."""
        runs = self.standings(cell)
        if not runs or not all(one.over for one in runs):
            return None
        values = tuple(one.document.accuracy if one.document else None for one in runs)
        return SeededRuns(values, self.chance(runs[0].settings))

    def chance(self, settings: TrainSettings) -> float:
        """The line below which an accuracy of such a run says nothing."""
        return chance_level(settings.dataset, settings.model, self.request.data_root)

    def noise_and_update(self, method: str, data: str) -> tuple[float, float] | None:
        """Norms in the first round: of the printed noise in the average of K updates, and of an update without noise.

        An average is at most as long as the updates are on average. None before both runs have begun.
        """
        noisy, clean = (self.standings(Cell(data, method, sigma)) for sigma in (AS_PRINTED, 0.0))
        if not noisy or not noisy[0].rounds or not clean[0].rounds:
            return None
        size = parameters(noisy[0].settings.dataset, noisy[0].settings.model, self.request.data_root)
        noise, update = averaged_noise(noisy[0], size), clean[0].rounds[0].update_norm
        return None if noise is None or update is None else (noise, update)

    def _standing(self, settings: TrainSettings) -> Standing:
        document = self._trained.finished(settings)
        rounds = document.rounds if document else self._trained.so_far(settings)
        return Standing(settings, rounds, document, document is not None or self.folder(settings) in self._diverged)


def full_scale(request: Request) -> Comparison:
    """Trains every row, small datasets first, and keeps ``full-accuracy.txt`` and ``.json`` beside the runs."""
    table = _Table(request)
    try:
        for row in request.dealt(table.rows(), "rows"):
            table.make(row)
    finally:
        if not request.shard:
            table.keep()
    request.require_whole()
    return table.comparison()


class _Table:
    def __init__(self, request: Request) -> None:
        self.request, self.runs = request, FullRuns(request)
        self.datasets = QUICK_DATASETS if request.quick else DATASETS
        self.ladder = QUICK_LADDER if request.quick else LADDER

    def rows(self) -> list[Cell]:
        """Methods on datasets, and Table V's larger C: each is trained without the others."""
        bounded = () if self.request.quick else BOUNDED
        return [
            row
            for data in self.datasets
            for row in (*(Cell(data, method) for method in METHODS), *(one for one in bounded if one.data == data))
        ]

    def make(self, row: Cell) -> None:
        """Trains what a row needs: as printed, without noise, level by level, and at the released scripts' noise."""
        for cell in self._cells_of(row):
            self.runs.make(cell)
            if not self.request.shard:
                self.keep()

    def _cells_of(self, row: Cell) -> Iterator[Cell]:
        yield row
        if row in BOUNDED or not has_noise(row.method):
            return
        yield Cell(row.data, row.method, 0.0)
        while (cell := self.most_noise(row.data, row.method)[0]) and self.unfinished(cell):
            yield cell
        if not self.request.quick:
            yield Cell(row.data, row.method, RELEASED)

    def unfinished(self, cell: Cell) -> bool:
        """Return whether something of a cell can be made and is not."""
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
        """Writes ``full-accuracy.txt`` and ``full-accuracy.json``: the table as it stands, and how far each run is."""
        table, folder = self.comparison(), self.request.run.folder.path
        listed = [_listed(cell, one) for cell in self._cells() for one in self.runs.standings(cell)]
        listed = [one for one in listed if one["over"] or one["rounds"] or one["noise"] in _OF_EVERY_ROW]
        text = io.StringIO()
        table.print(Console(file=text, width=_WIDTH))
        text.write("\nRuns:\n")
        for one in listed:
            text.write(f"{one['data']}, {one['method']}, {one['noise']}: {one['state']}\n")
        printed = "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
        write_atomic(folder / f"{_NAME}.txt", printed.encode())
        write_atomic(folder / f"{_NAME}.json", json.dumps(table.document() | {"runs": listed}, indent=1).encode())

    def _cells(self) -> Iterator[Cell]:
        for row in self.rows():
            yield row
            if row not in BOUNDED and has_noise(row.method):
                released = () if self.request.quick else (RELEASED,)
                yield from (Cell(row.data, row.method, sigma) for sigma in (0.0, *self.ladder, *released))


def _reaches(cell: Cell, made: SeededRuns) -> bool:
    return made.mean > made.chance and abs(made.mean - cell.paper) <= MARGIN


def _epsilons(document: TrainDocument | None) -> dict[str, str]:
    """Return what the paper's convention claims for this run, and the smallest that is proven for it, or the word for
    none."""
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
    "full-accuracy.txt lists how far each run is",
    *NOTES,
]


def _listed(cell: Cell, one: Standing) -> dict[str, Any]:
    return {
        "data": cell.data, "method": cell.name, "noise": cell.noise, "seed": one.settings.seed,
        "accuracy": one.accuracy, "rounds": len(one.rounds), "of": one.settings.rounds, "over": one.over,
        "state": _state(one),
    }  # fmt: skip


def _state(run: Standing) -> str:
    if run.over:
        return f"{run.accuracy:.4f}" if run.document else f"diverged after {len(run.rounds)} rounds"
    begun = "" if run.accuracy is None else f"{run.accuracy:.4f} "
    return f"{begun}after {len(run.rounds)} of {run.settings.rounds} rounds"


def averaged_noise(run: Standing, size: int) -> float | None:
    """Expected L2 norm of the noise in the first round's average of K updates of ``size`` numbers; None if unknown.

    L steps of learning rate η put η sqrt(L) times the noise of one step into an update, and the average of K clients
    has a sqrt(K)-th of it; noise of the server's on their sum has a K-th. Where a step's noise follows its batch, the
    largest one counts.
    """
    settings = run.settings
    fixed = settings.build_defense().fixed_noise(PrivacyFacts(settings.cohort(), 1))
    if fixed is not None and fixed.place == "server":
        return fixed.deviation * math.sqrt(size) / settings.clients_per_round
    step = run.rounds[0].noise
    if step is None:
        return None
    return settings.learning_rate * step * math.sqrt(settings.local_steps * size / settings.clients_per_round)
