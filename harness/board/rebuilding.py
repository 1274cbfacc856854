"""Makes a card again, from the settings that it holds and nothing else."""

from dataclasses import dataclass
from pathlib import Path

from harness.base.devices import choose_device, use_threads
from harness.board.making import make_card
from harness.board.reading import cells_of
from harness.evaluation import Run, document_of
from harness.evaluation.run import with_controls, with_told
from harness.reports.html.run_data import RunData
from harness.results import RunFolder
from harness.results.card import Card
from harness.results.environment import environment
from harness.training import TrainDocument, TrainFolder, TrainOptions, train, train_settings


@dataclass(frozen=True)
class Place:
    """Where data lie, and a folder for what is made; ``resume``: believes what lies there already."""

    data_root: Path
    scratch: Path
    chunk: int = 128
    resume: bool = False


def rebuild(card: Card, place: Place) -> Card:
    """The card as it comes out here, computed with as many threads as it says.

    Raises:
        UsageError: its settings are impossible, its data are not at hand.
    """
    threads = card.environment.get("threads")
    if card.environment.get("device") == "cpu" and isinstance(threads, int):
        use_threads(threads)
    device = "cpu" if card.environment.get("device") == "cpu" else choose_device("auto")
    asked = [one.model_copy(update={"device": device}) for one in cells_of(card)]
    run = Run(place.data_root, RunFolder(place.scratch), place.chunk, resume=place.resume)
    stored = with_told([run.cell(settings) for settings in asked], run.done)
    made = [one.cell for one in with_controls(stored, run.done)]
    where = environment(device)
    document = document_of(made, where)
    own = RunData("again", place.scratch, settings={one.cell.key or "": one.settings for one in stored})
    return make_card(stored, where, document.valid_reason, _train(card, device, place), own)


def _train(card: Card, device: str, place: Place) -> TrainDocument | None:
    if card.training is None:
        return None
    settings = train_settings(**card.training.settings | {"device": device})
    folder = TrainFolder(place.scratch / "training")
    return train(settings, place.data_root, folder, TrainOptions(evaluate_every=settings.rounds, resume=place.resume))
