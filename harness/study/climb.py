"""Trains a defense at every level of noise, then lets every attack at it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from harness.base.errors import UsageError
from harness.base.progress import counted, within
from harness.base.ranges import Count, Delta, Positive
from harness.evaluation import document_of
from harness.evaluation.report_cell import covers
from harness.evaluation.run import require_possible
from harness.experiment import CellSettings, usual_defense
from harness.federation.taps import SURFACES, Tap
from harness.parallel.processes import in_processes
from harness.parallel.units import WHOLE, Job, Shard, in_good_order, units_of
from harness.reports import text
from harness.results import CellResult, Statement
from harness.results.environment import environment
from harness.results.files import sha256
from harness.results.frontier import FrontierDocument, FrontierPoint
from harness.scoring.verdict import VICTIMS_NEEDED
from harness.study.runner import Judged, Request, TrainedRuns, cells_at, judge
from harness.training import TrainDocument, TrainSettings, fitted, kept_model, train_settings, trained_run
from harness.training.settings import BatchSampling, ClientSampling

# --------------------------------------------------------------------------------------
# What a frontier is made of: data, defenses, levels of noise, the federation that is trained, and who attacks it.


#: Named defenses with what differs from their defaults.
Defenses = tuple[tuple[str, dict[str, Any]], ...]

_NOISE = ("sigma", "amount", "noise_multiplier", "relative_noise_stddev", "sensitivity", "dp_sensitivity")
#: What is climbed where numbers are made coarser, and nothing is proven at any of them.
BITS = "bits"


class FrontierSettings(BaseModel, frozen=True, extra="forbid"):
    """Everything but data, defenses and levels. The same network is trained and attacked."""

    model: str = Field("logistic", description="The network that is trained and attacked.")
    victims: Count = Field(VICTIMS_NEEDED, description="Victims per point; fewer cannot show resilience.")
    attacked: Literal["initial", "trained"] = Field(
        "initial", description="Attacked weights: initial (a network per victim), or trained."
    )
    clients: Count = Field(20, description="N, clients of the federation.")
    clients_per_round: Count = Field(20, description="K, clients per round.")
    rounds: Count = Field(20, description="T, rounds.")
    local_steps: Count = Field(10, description="L, local steps per round.")
    batch_size: Count = Field(10, description="B, examples per local step of training.")
    examples: Count | None = Field(
        None, description="Examples per client; by default L times B, or fewer if there are fewer."
    )
    split: str = Field("iid", description="See harness train.")
    client_sampling: ClientSampling = Field("all", description="fixed, poisson or all.")
    batch_sampling: BatchSampling = Field("poisson", description="shuffle, partition, poisson or without-replacement.")
    learning_rate: Positive = Field(0.1, description="Learning rate of local SGD.")
    delta: Delta = Field(1e-5, description="Delta of every epsilon.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Random seed of training and victims.")


@dataclass(frozen=True)
class Grid:
    """Datasets, defenses, levels of noise and taps of a frontier; ``attacks`` are names of attacks and suites."""

    datasets: tuple[str, ...] = ("mnist-sample", "digits", "cancer")
    defenses: Defenses = (("fed_cdp", {}), ("fed_sdp", {"noise_at": "client"}))
    levels: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    taps: tuple[Tap, ...] = (SURFACES[0],)
    attacks: tuple[str, ...] = ("auto",)


_FULL = Grid(
    datasets=("mnist", "fashion-mnist", "digits", "adult", "cancer"),
    defenses=(
        ("fed_cdp", {}), ("fed_acdp", {}), ("dp_local", {}), ("fed_sdp", {"noise_at": "client"}),
        ("quantile", {"unit": "example"}), ("adaclip", {}), ("noise", {"applies_to": "gradient"}),
    ),
    levels=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    taps=(SURFACES[2], SURFACES[0]),
)  # fmt: skip


def usual(full: bool) -> Grid:
    """Return what is tried where nothing is named; ``full`` takes hours."""
    return _FULL if full else Grid()


def noise_setting(defense: str) -> str:
    """The setting that the level of a defense's noise, or the bits of its numbers, go by.

    Raises:
        UsageError: it has none.
    """
    own = usual_defense(defense)
    found = next((name for name in own if name.rpartition(".")[2] in (*_NOISE, BITS)), None)
    if found is None:
        raise UsageError(
            f"{defense} has no noise level; choose a defense with one, such as fed_cdp (settings {', '.join(_NOISE)}), "
            "or quantization"
        )
    return found


# --------------------------------------------------------------------------------------
# The climb: what is trained and attacked at each level, and what may be said of it.


# The best point at a place, in words: as accurate as without a defense, and nothing leaks.

#: Accuracy that a defense may cost, as a share.
MARGIN = 0.05

Numbered = Sequence[tuple[int, FrontierPoint]]


def answer(points: Numbered) -> list[tuple[str, int | None]]:
    """Return what may be said of one dataset at one tap, and the best point's number; None where there is none.

    Of points within :data:`MARGIN` of the accuracy without a defense at which ``resilient`` could be shown, it is the
    one of the smallest proven epsilon, of each unit where there are two, since an example's and a client's cannot be
    compared; else, where none is proven, the most accurate.
    """
    base = next((one.accuracy for _, one in points if one.setting is None), None)
    where = f"{points[0][1].dataset}, tap {points[0][1].tap}, {points[0][1].attacked} weights"
    if base is None:
        return [(f"{where}: training without a defense diverged, so there is nothing to compare with", None)]
    affordable = [
        (number, one) for number, one in points
        if one.setting is not None and one.accuracy is not None and one.accuracy >= base - MARGIN
    ]  # fmt: skip
    held = [(number, one) for number, one in affordable if one.verdict == "resilient" and not one.identifies]
    proven = dict.fromkeys(one.unit for _, one in held if one.epsilon is not None)
    groups = [[pair for pair in held if pair[1].unit == unit] for unit in proven] or ([held] if held else [])
    best = [min(group, key=_worth) for group in groups]
    return [(f"{where}: {_said(one, base)}", number) for number, one in best] or [
        (f"{where}: {_none_found(affordable, base)}", None)
    ]


def _worth(numbered: tuple[int, FrontierPoint]) -> tuple[bool, float, float]:
    one = numbered[1]
    return one.epsilon is None, one.epsilon or 0.0, -(one.accuracy or 0.0)


def name_of(point: FrontierPoint) -> str:
    """The defense with its level of noise."""
    return point.defense if point.setting is None else f"{point.defense} {point.setting}={point.level:g}"


def _said(best: FrontierPoint, base: float) -> str:
    epsilon = f"no epsilon is proven ({best.epsilon_reason})"
    if best.epsilon is not None:
        epsilon = f"proven epsilon {text.epsilon(best.epsilon)} (delta {best.delta:g}, unit: {best.unit})"
    return (
        f"{name_of(best)} costs {100 * (base - (best.accuracy or 0)):.1f} points of accuracy "
        f"({text.percent(best.accuracy)}, without a defense {text.percent(base)}), {epsilon}, and no attack leaks: "
        f"{text.rate(best.success)} of {best.success.n} come back"
    )


def _none_found(affordable: Numbered, base: float) -> str:
    within = f"within {100 * MARGIN:g} points of the accuracy without a defense ({text.percent(base)})"
    silent = [name_of(one) for _, one in affordable if one.verdict == "inconclusive"]
    if silent:
        return f"none was found that is {within} and resilient; nobody could tell of {', '.join(silent)}"
    if affordable:
        return f"none was found: every level {within} leaks"
    return f"none was found: no level is {within}"


# One level of noise: what was trained and what was found, side by side.


@dataclass(frozen=True)
class Level:
    """A defense at one level of noise on one dataset; ``setting`` None: no defense."""

    dataset: str
    defense: str
    arguments: dict[str, Any]
    setting: str | None = None
    level: float | None = None

    @property
    def name(self) -> str:
        """By which shards tell it from the others."""
        return f"{self.dataset} {self.defense} {self.level}"


def point(
    settings: FrontierSettings, level: Level, document: TrainDocument | None, training: str, judged: Judged
) -> FrontierPoint:
    """The point of a level at one place; ``document``: its training, None where it diverged, in the folder named."""
    row, best = judged.informed, judged.best()
    return FrontierPoint(
        dataset=level.dataset, model=row.model, defense=level.defense, defense_args=row.defense_args,
        setting=level.setting, level=level.level, tap=row.tap, surface=row.surface, attacked=settings.attacked,
        accuracy=document and document.accuracy, test_examples=document.test_examples if document else 0,
        training=training, **_promised(document, Tap(row.tap)),
        verdict=row.verdict, verdict_reason=row.verdict_reason, headline=row.headline, strongest=row.strongest,
        identifies=row.identifies, **({"success": best.asr["strict"]} if best else {}), **_ceiling(judged.cells),
    )  # fmt: skip


def diverged(settings: FrontierSettings, level: Level, tap: Tap) -> FrontierPoint:
    """There is no model to attack; the level is counted all the same."""
    why = "training diverged"
    where: dict[str, Any] = {"tap": tap, "surface": tap.surface}
    return FrontierPoint(
        dataset=level.dataset, model=settings.model, defense=level.defense, defense_args=level.arguments,
        setting=level.setting, level=level.level, **where, attacked=settings.attacked,
        epsilon_reason=why, verdict="inconclusive", verdict_reason=f"{why}, so that there is no model to attack",
        ceiling_reason=why,
    )  # fmt: skip


def _promised(document: TrainDocument | None, tap: Tap) -> dict[str, Any]:
    """The smallest epsilon of this run that covers what is read there, or why there is none."""
    if document is None:
        return {"epsilon_reason": "training diverged"}
    covering = [one for one in document.privacy if covers(one, tap) and one.epsilon is not None]
    if not covering:
        claimed = next((one.claimed_epsilon for one in document.privacy if one.claimed_epsilon is not None), None)
        said = next((one for one in document.privacy if one.view == "server"), None)
        return {"epsilon_reason": _why_none(document.privacy), "claimed_epsilon": claimed, "stated": _of_filter(said)}
    found = min(covering, key=lambda one: one.epsilon or 0.0)
    return {
        "epsilon": found.epsilon, "delta": found.delta, "unit": found.unit, "guarantee": found.guarantee,
        "told_apart": found.told_apart,
        "epsilon_reason": found.notes, "claimed_epsilon": found.claimed_epsilon, "stated": _of_filter(found),
    }  # fmt: skip


def _of_filter(stated: Statement | None) -> Statement | None:
    return stated if stated is not None and text.is_of_claims(stated) else None


def _why_none(statements: Sequence[Statement]) -> str:
    server = next((one for one in statements if one.view == "server"), None)
    if server is None:
        return "no privacy statement is made"
    return server.notes if server.guarantee == "none" else "what is promised does not cover what is read there"


def _ceiling(cells: Sequence[CellResult]) -> dict[str, Any]:
    """Return what a theorem says of strict images; it is the same for all attacks at a place."""
    bounds = [cell.bound for cell in cells if cell.bound]
    events = [event for bound in bounds for event in bound.events if event.event == "strict image"]
    if not events:
        return {"ceiling_reason": "no attack that reconstructs was possible"}
    known = next((event for event in events if event.ceiling is not None), None)
    if known:
        return {"ceiling": known.ceiling}
    return {"ceiling_reason": bounds[0].reason or events[0].reason or ""}


_OF_TRAINING = set(FrontierSettings.model_fields) & set(TrainSettings.model_fields)


class _Climb:
    """Common part of all levels."""

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
        for name, arguments in self.grid.defenses:
            if (varied := noise_setting(name)) in arguments:
                option = "--bits" if varied.rpartition(".")[2] == BITS else "--sigma"
                raise UsageError(f"{varied} of {name} is what {option} varies; leave it out of --defense-arg")
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
        """Return whether there are weights to attack: those of a training that diverged are none."""
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
        UsageError: unknown names, impossible settings, data that are not at hand; or no point can be attacked.
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
    require_possible([stored for stored in made if stored.cell.role == "cell"])
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
