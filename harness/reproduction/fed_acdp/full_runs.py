"""How far the runs of the accuracy at full scale are: finished, stopped on their way, or not begun."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.defenses import PrivacyFacts
from harness.frontier.request import Request
from harness.frontier.trained import TrainedRuns
from harness.papers.accuracy import Accuracies
from harness.papers.chance import chance_level, parameters
from harness.papers.measured import SeededRuns
from harness.reproduction.fed_acdp.full_cells import AS_PRINTED, METHODS, Cell, has_noise
from harness.training import RoundRecord, TrainDocument, TrainSettings


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
