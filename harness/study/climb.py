"""Trains a defense at every level of noise, then lets every attack at it."""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from harness.base.progress import counted, within
from harness.evaluation import document_of
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.parallel.processes import in_processes
from harness.parallel.shard import WHOLE, Shard
from harness.parallel.units import in_good_order, units_of
from harness.parallel.worker import Job
from harness.results.environment import environment
from harness.results.files import sha256
from harness.results.frontier import FrontierDocument, FrontierPoint
from harness.study.best import answer
from harness.study.judging import cells_at, judge
from harness.study.point import Level, diverged, point
from harness.study.request import Request
from harness.study.settings import FrontierSettings, Grid, noise_setting
from harness.study.trained import TrainedRuns
from harness.training import TrainDocument, TrainSettings, fitted, kept_model, train_settings, trained_run

_OF_TRAINING = set(FrontierSettings.model_fields) & set(TrainSettings.model_fields)


class _Climb:
    """What all levels share."""

    def __init__(
        self, settings: FrontierSettings, grid: Grid, request: Request, resume: bool, shard: Shard = WHOLE
    ) -> None:
        self.settings, self.grid, self.request, self.shard = settings, grid, request, shard
        keep = (settings.rounds,) if settings.attacked == "trained" else ()
        self.runs = TrainedRuns(request, keep=keep, resume=resume)

    @cached_property
    def levels(self) -> list[Level]:
        """Without a defense first, then every defense from its least noise on; the shard's alone."""
        named = [(name, arguments, noise_setting(name)) for name, arguments in self.grid.defenses]
        every = [
            level
            for dataset in self.grid.datasets
            for level in (
                Level(dataset, "none", {}),
                *(
                    Level(dataset, name, {**arguments, setting: amount}, setting, amount)
                    for name, arguments, setting in named
                    for amount in self.grid.levels
                ),
            )
        ]
        return self.shard.of(every)

    def training_of(self, level: Level) -> TrainSettings:
        """The federation that is trained."""
        own = self.settings.model_dump(include=_OF_TRAINING)
        made = train_settings(
            dataset=level.dataset, defense=level.defense, defense_args=level.arguments,
            device=self.request.device, **own,
        )  # fmt: skip
        return fitted(made, self.request.data_root)

    def place(self, level: Level, tap: Tap) -> dict[str, Any]:
        """A cell's settings without its attack: one example of a client of the federation that is trained."""
        own, found = self.settings, self._untrained(level, tap)
        if own.attacked == "initial":
            return found
        folder = self.runs.folder(self.training_of(level))
        weights = kept_model(folder, own.rounds)
        return found | {
            "weights": str(weights), "weights_hash": sha256(weights), "trained": trained_run(folder),
            "round": own.rounds, "rounds": own.rounds + 1,
        }  # fmt: skip

    def refuse_mistakes(self) -> None:
        """Before any work is done. Raises UsageError."""
        for level in self.levels:
            self.training_of(level)
            for tap in self.grid.taps:
                cells_at(self.request, self.grid.attacks, **self._untrained(level, tap))

    def _untrained(self, level: Level, tap: Tap) -> dict[str, Any]:
        own = self.settings
        return {
            "dataset": level.dataset, "model": own.model, "defense": level.defense, "defense_args": level.arguments,
            "tap": tap, "victims": own.victims, "clients": own.clients, "clients_per_round": own.clients_per_round,
            "rounds": own.rounds, "steps_per_round": own.local_steps, "learning_rate": own.learning_rate,
        }  # fmt: skip

    def train(self) -> list[TrainDocument | None]:
        """A run per level; None where it diverged."""
        return [
            self.runs.document(f"{level.defense} on {level.dataset}", self.training_of(level), self.settings.rounds)
            for level in counted(self.levels, "training")
        ]

    def cells(self, trained: Sequence[TrainDocument | None]) -> Iterator[CellSettings]:
        """Every cell, for those who share them out."""
        for level, document in zip(self.levels, trained, strict=True):
            for tap in self.grid.taps if self.is_there(document) else ():
                yield from cells_at(self.request, self.grid.attacks, **self.place(level, tap))

    def is_there(self, document: TrainDocument | None) -> bool:
        """Whether there are weights to attack: those of a training that diverged are none."""
        return self.settings.attacked == "initial" or document is not None

    def points(self, trained: Sequence[TrainDocument | None]) -> Iterator[FrontierPoint]:
        """One per level and place."""
        for level, document in counted(list(zip(self.levels, trained, strict=True)), "point"):
            for tap in self.grid.taps:
                if not self.is_there(document):
                    yield diverged(self.settings, level, tap)
                    continue
                judged = judge(self.request, self.grid.attacks, **self.place(level, tap))
                folder = self.runs.folder(self.training_of(level)).relative_to(self.request.run.folder.path)
                yield point(self.settings, level, document, str(folder), judged)


def make_frontier_shard(settings: FrontierSettings, grid: Grid, request: Request, shard: Shard) -> list[FrontierPoint]:
    """Trains and attacks a shard's levels in a folder that it may share with others; :func:`make_frontier` with
    ``resume`` makes the whole of it.

    Raises:
        UsageError: as :func:`make_frontier`.
    """
    climb = _Climb(settings, grid, request, resume=True, shard=shard)
    climb.refuse_mistakes()
    with within(f"shard {shard}"):
        return list(climb.points(climb.train()))


def make_frontier(
    settings: FrontierSettings, grid: Grid, request: Request, job: Job, jobs: int, resume: bool
) -> FrontierDocument:
    """Trains and attacks every point; the folder gets the results of all cells as well.

    Args:
        job: what several processes share out the cells with; its folder is the request's.
        jobs: how many of them; 1 makes everything here.

    Raises:
        UsageError: unknown names, impossible settings, data that are not at hand.
    """
    began = time.perf_counter()
    climb = _Climb(settings, grid, request, resume)
    climb.refuse_mistakes()
    with within():
        trained = climb.train()
        if jobs > 1:
            units = units_of(list(climb.cells(trained)), request.run)
            in_processes(job, in_good_order(units, request.run), jobs)
        points = list(climb.points(trained))
    made = list(request.run.done.values())
    document = document_of([stored.cell for stored in made], environment(request.device))
    request.run.folder.write_results(document, [record for stored in made for record in stored.victims])
    answers = [
        said
        for place in dict.fromkeys((one.dataset, one.tap) for one in points)
        for said in answer([(number, one) for number, one in enumerate(points) if (one.dataset, one.tap) == place])
    ]
    return FrontierDocument(
        environment=document.environment,
        settings=settings.model_dump(mode="json") | {"attacks": ", ".join(grid.attacks)},
        valid=document.valid, valid_reason=document.valid_reason, points=points,
        answers=[words for words, _ in answers], best=[number for _, number in answers],
        seconds=time.perf_counter() - began,
    )  # fmt: skip
