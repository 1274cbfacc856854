"""Runs what a study asks for: cells and trainings, kept in a folder, shared among processes and shards."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from harness.base.errors import UsageError
from harness.base.progress import counted, progress
from harness.evaluation import Run
from harness.experiment import CellSettings, expand
from harness.parallel.units import WHOLE, Shard
from harness.results import CellResult, SummaryRow, cell_key
from harness.scoring.summarise import summarise
from harness.training import (
    DivergedError,
    RoundRecord,
    TrainDocument,
    TrainFolder,
    TrainOptions,
    TrainSettings,
    read_training,
    train,
)
from harness.training.bayesian import Notes
from harness.training.checkpoint import DOCUMENT

# How to run a table or a sweep, and what of it one of several workers of a folder makes: the rows dealt to it.

T = TypeVar("T")


class ShardDone(Exception):
    """Signal that what was dealt to this shard is made; the table itself needs what all of them made."""


@dataclass(frozen=True)
class _Place(Generic[T]):
    name: str
    thing: T


def dealt(things: Iterable[T], what: str, shard: Shard) -> Sequence[T]:
    """Those of a shard, in their order.

    They are dealt by a hash of their place: in turn, every third of three datasets would be one shard's.

    Args:
        what: they are, so that the first ones of two kinds are not all one shard's.
    """
    places = [
        _Place(hashlib.sha256(f"{what} {place}".encode()).hexdigest(), thing) for place, thing in enumerate(things)
    ]
    return [place.thing for place in shard.of(places)]


@dataclass(frozen=True)
class Request:
    """Settings of a table's run: ``victims`` per cell where given, else the table's own number (fewer for ``quick``).

    ``shard``: make what is dealt to it, and no table; None makes everything.
    """

    run: Run
    data_root: Path
    device: str = "cpu"
    quick: bool = False
    victims: int | None = None
    seeds: tuple[int, ...] = (0,)
    shard: Shard | None = None

    def count(self, full: int, quick: int) -> int:
        """Victims per cell."""
        return self.victims or (quick if self.quick else full)

    def several_seeds(self, runs: int) -> tuple[int, ...]:
        """The seeds; so many from the first where one is asked for at full scale."""
        first, *more = self.seeds
        return self.seeds if more or self.quick else tuple(range(first, first + runs))

    def dealt(self, things: Iterable[T], what: str) -> Iterator[T]:
        """One thing after another, a shard's own alone, as :func:`harness.base.progress.counted` shows them.

        Things do not need each other; after all of them comes :meth:`require_whole`.
        """
        yield from counted(dealt(things, what, self.shard or WHOLE), what)

    def require_whole(self) -> None:
        """Raises ShardDone: this is a shard, and what comes now needs everything that was dealt."""
        if self.shard:
            raise ShardDone


# One place, judged twice on the same observations: by attackers who do not know the defense, and by all.

#: Fewer victims than 59 cannot show resilience.
VICTIMS, QUICK_VICTIMS = 100, 60
WORDS = {"leaks": "N", "resilient": "Y", "inconclusive": "?"}
#: Who attacks; ``--quick``: the papers' own attack and those that know the defense.
ATTACKS, QUICK_ATTACKS = ("auto",), ("cpl", "map", "identify")


@dataclass(frozen=True)
class Judged:
    """The cells of all attacks at one place, and the verdicts over those of the plain tier alone and over all."""

    cells: list[CellResult]
    plain: SummaryRow
    informed: SummaryRow

    @property
    def fell(self) -> bool:
        """Return whether knowing the defense overturns that it withstood."""
        return self.plain.verdict != "leaks" and self.informed.verdict == "leaks"

    def best(self, tier: str | None = None) -> CellResult | None:
        """The cell of the (tier's) attack that brings most images back; None where none was possible."""
        possible = [
            cell for cell in self.cells
            if tier in (None, cell.tier) and cell.not_applicable_reason is None and "strict" in cell.asr
        ]  # fmt: skip
        return max(possible, key=lambda cell: cell.outcomes.success, default=None)

    @property
    def identified(self) -> CellResult | None:
        """The cell of the attack that only tells known images apart, where it was possible."""
        return next((cell for cell in self.cells if cell.identified and not cell.not_applicable_reason), None)


def cells_at(request: Request, attacks: Sequence[str], **settings: Any) -> list[CellSettings]:
    """The cells of every attack at one place; ``settings`` are a cell's without its attack."""
    common = {"seeds": request.seeds, "device": request.device, "prior": "auto"} | settings
    defense = common.pop("defense", "none"), common.pop("defense_args", {})
    return expand({"defense": [defense], "attack": [(name, {}) for name in attacks]}, **common)


def judge(request: Request, attacks: Sequence[str] = (), **settings: Any) -> Judged:
    """Runs every attack at one place, those of the request where none is named."""
    asked = cells_at(request, attacks or attacks_of(request), **settings)
    cells = [cell for one in counted(asked, "attack") for cell in request.run.with_told(one)]
    (informed,) = summarise(cells)
    # A verdict without the informed is that of attacks which were named one by one.
    plain = summarise([cell.model_copy(update={"suite": None}) for cell in cells if cell.tier == "plain"], plain=True)
    return Judged(cells, plain[0] if plain else informed, informed)


def attacks_of(request: Request) -> tuple[str, ...]:
    """Names of the attacks and suites that are tried."""
    return QUICK_ATTACKS if request.quick else ATTACKS


def strict(cell: CellResult | None) -> str:
    """Images brought back, of all; ``-`` where no attack was possible."""
    return "-" if cell is None else f"{cell.asr['strict'].successes}/{cell.asr['strict'].n}"


# Federations that tables need, each trained once and into a folder of its own, where `--resume` finds it.


class TrainedRuns:
    """The training runs of one request.

    ``chunk``: clients trained together, which changes no number; ``keep``: rounds whose model is kept; ``resume``: use
    what an earlier run left, by default where the request does. In a folder that is shared each is trained by one
    worker, for which others wait.
    """

    def __init__(
        self, request: Request, chunk: int = 25, keep: tuple[int, ...] = (), resume: bool | None = None
    ) -> None:
        self.request, self.chunk, self.keep = request, chunk, keep
        self.resume = request.run.resume if resume is None else resume
        self._made: dict[str, TrainDocument | None] = {}
        self._begun: set[Path] = set()

    def curve(self, title: str, settings: TrainSettings, every: int) -> dict[int, float]:
        """Accuracy by round, measured each time ``every`` rounds have passed; empty where training diverged."""
        document = self.document(title, settings, every)
        rounds = document.rounds if document else []
        return {one.round: one.accuracy for one in rounds if one.accuracy is not None}

    def folder(self, settings: TrainSettings) -> Path:
        """Return the folder of the run of these settings."""
        return self.request.run.folder.path / "trained" / _key(settings)

    def finished(self, settings: TrainSettings) -> TrainDocument | None:
        """The run of these settings, if it is over: one of this request, or any where it resumes.

        Raises:
            UsageError: its accuracy is not what its checkpoint says.
        """
        folder = self.folder(settings)
        known = folder in self._begun or (self.resume and self.request.run.folder.is_of_this_run(folder / DOCUMENT))
        if not known or not (folder / DOCUMENT).exists():
            return None
        document = read_training(folder)
        for said, saved in zip(document.rounds, TrainFolder(folder).saved_rounds(), strict=False):
            if saved.accuracy not in (None, said.accuracy):  # the last one may be measured behind the checkpoint
                raise UsageError(
                    f"{str(folder / DOCUMENT)!r} was changed: the accuracy of round {said.round} is {said.accuracy}, "
                    f"by its checkpoint it is {saved.accuracy}; delete the folder to train again"
                )
        return document

    def so_far(self, settings: TrainSettings) -> list[RoundRecord]:
        """The rounds that a run has finished until it was stopped, or until it diverged."""
        folder = self.folder(settings)
        saved = TrainFolder(folder).load(settings, {}) if self.resume or folder in self._begun else None
        return saved[2] if saved else []

    def document(
        self, title: str, settings: TrainSettings, every: int = 1, bayesian: bool = False
    ) -> TrainDocument | None:
        """The run itself; None where it diverged. ``bayesian``: with notes for Bayesian accounting."""
        key = _key(settings)
        if key not in self._made:
            with self.request.run.folder.locked(key):
                made = self.finished(settings) if self.resume else None
                self._made[key] = made or self._train(title, settings, every, bayesian)
        return self._made[key]

    def _train(self, title: str, settings: TrainSettings, every: int, bayesian: bool) -> TrainDocument | None:
        folder = TrainFolder(self.folder(settings))
        resume = self.resume and self.request.run.folder.is_of_this_run(folder.checkpoint)
        self._begun.add(folder.path)
        with progress(f"training {title}", settings.rounds, "rounds") as bar:
            options = TrainOptions(
                self.chunk,
                every,
                self.keep,
                resume,
                notes=Notes if bayesian else None,
                on_round=lambda record: bar.reach(record.round),
            )
            try:
                return train(settings, self.request.data_root, folder, options)
            except DivergedError:
                return None


def _key(settings: TrainSettings) -> str:
    return cell_key({"training": settings.model_dump(mode="json")})
