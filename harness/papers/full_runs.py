"""The runs of the accuracy at full scale: methods and levels of noise, and how far each run is."""

import math
import shlex
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.defenses import PrivacyFacts
from harness.papers.accuracy import CODE_SIGMA, TABLE_5, TABLE_6_ACCURACY, Accuracies
from harness.papers.chance import chance_level, parameters
from harness.papers.grid import grid
from harness.papers.measured import SeededRuns
from harness.study.runner import Request, TrainedRuns
from harness.training import RoundRecord, TrainDocument, TrainSettings

#: Cheap ones first; a run may be stopped at any time.
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
    """Whether its row has other levels of noise beside the printed one."""
    return method != "non-private"


def command(settings: TrainSettings, folder: Path) -> str:
    """What makes this run alone, into the folder where the table finds it."""
    fields = TrainSettings.model_fields
    chosen = {
        name: value for name, value in settings.model_dump().items()
        if name not in ("defense_args", "device") and (name in ("dataset", "seed") or value != fields[name].default)
    }  # fmt: skip
    words = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for name, value in settings.defense_args.items() for word in ("--defense-arg", f"{name}={value}")]
    return shlex.join(["harness", "train", *words, "--resume", "--out", str(folder)])


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

    @property
    def pace(self) -> float | None:
        """Seconds of a round."""
        return statistics.fmean(one.seconds for one in self.rounds) if self.rounds else None


class FullRuns:
    """Trains cells, one run per seed of the request, and tells of those that are there."""

    def __init__(self, request: Request) -> None:
        self.request, self._accuracies, self._trained = request, Accuracies(request), TrainedRuns(request)
        self._diverged: set[Path] = set()
        self._settings: dict[Cell, list[TrainSettings]] = {}
        self._standings: dict[Cell, list[Standing]] = {}

    def header(self, *datasets: str) -> list[str]:
        """What every table of accuracy says of its runs."""
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
        """Where the run of these settings lies."""
        return self._trained.folder(settings)

    def make(self, cell: Cell) -> None:
        """Trains what is not over yet."""
        self.look_again()
        for settings in self.settings(cell):
            if self._standing(settings).over:
                continue
            title = f"{cell.method}, {cell.noise}, on {cell.data}"
            if self._trained.document(title, settings) is None:
                self._diverged.add(self.folder(settings))

    def standings(self, cell: Cell) -> list[Standing]:
        """How far the cell's runs are, or were when they were last looked at."""
        if cell not in self._standings:
            self._standings[cell] = [self._standing(settings) for settings in self.settings(cell)]
        return self._standings[cell]

    def look_again(self) -> None:
        """What is not over may have gone on, here or by another process."""
        self._standings = {cell: runs for cell, runs in self._standings.items() if all(one.over for one in runs)}

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

    def left(self, cell: Cell, run: Standing) -> float | None:
        """Seconds to go, by the pace of this method's runs here, else of the slowest one's; None where none is known.

        A pace is that of this machine beside whatever else it did.
        """
        if run.over:
            return 0.0
        paces = {method: list(self._paces(cell.data, method)) for method in METHODS}
        known = {method: statistics.fmean(found) for method, found in paces.items() if found}
        if not known:
            return None
        return known.get(cell.method, max(known.values())) * (run.settings.rounds - len(run.rounds))

    def _paces(self, data: str, method: str) -> Iterator[float]:
        for sigma in (AS_PRINTED, 0.0) if has_noise(method) else (AS_PRINTED,):
            for one in self.standings(Cell(data, method, sigma)):
                if one.pace is not None:
                    yield one.pace

    def _standing(self, settings: TrainSettings) -> Standing:
        document = self._trained.finished(settings)
        rounds = document.rounds if document else self._trained.so_far(settings)
        return Standing(settings, rounds, document, document is not None or self.folder(settings) in self._diverged)


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
