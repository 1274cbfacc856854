"""Federations that tables need, each trained once and into a folder of its own, where ``--resume`` finds it."""

from pathlib import Path

from harness.base.progress import progress
from harness.results import cell_key
from harness.study.request import Request
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
from harness.training.checkpoint import DOCUMENT
from harness.training.norms_notes import Notes


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
        """Where the run of these settings lies."""
        return self.request.run.folder.path / "trained" / _key(settings)

    def finished(self, settings: TrainSettings) -> TrainDocument | None:
        """The run of these settings, if it is over: one of this request, or any where it resumes."""
        folder = self.folder(settings)
        known = folder in self._begun or (self.resume and self.request.run.folder.is_of_this_run(folder / DOCUMENT))
        return read_training(folder) if known and (folder / DOCUMENT).exists() else None

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
            with self.request.run.folder.alone_with(key):
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
