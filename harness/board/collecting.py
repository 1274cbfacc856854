"""The rows of runs as cards; what cannot be one is named, with the reason."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import UsageError
from harness.board.making import make_card
from harness.board.trained import is_of
from harness.experiment import CellSettings
from harness.own_sources import OWN_NAMES
from harness.reports import text
from harness.reports.html.run_data import RunData
from harness.results import ResultDocument, RunFolder, StoredCell, SummaryRow, read_results
from harness.results.card import Card
from harness.scoring.derived import findings, version_of
from harness.training import TrainDocument, read_training
from harness.training.checkpoint import DOCUMENT

_BESIDE = {"harness", "threads", "control"}


@dataclass
class Collected:
    """Cards without repeats, and a sentence for each row or training that is left out."""

    cards: list[Card] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class Forged(UsageError):
    """A verdict that is not that of its victims."""


def collect(paths: Sequence[Path]) -> Collected:
    """The cards of all runs, each with a training of the very federation where one of the folders holds it.

    Raises:
        UsageError: a folder holds no result of ``harness evaluate`` and no training run, or a verdict in it is not
            that of its victims.
    """
    found, seen = Collected(), set()
    trainings = [training for path in paths for training in _trainings(path, found.left_out)]
    for path in paths:
        if not (path / "results.json").exists() and (path / DOCUMENT).exists():
            continue
        document = read_results(path)
        for row in document.summary:
            try:
                card = _card(path, document, row, trainings)
            except Forged as problem:
                raise UsageError(f"{str(path)!r}: {problem}; run harness evaluate again") from problem
            except UsageError as problem:
                where = f"{row.defense} at {row.tap} on {row.dataset} in {str(path)!r}"
                found.left_out.append(text.safe(f"{where}: {problem}", 300))
                continue
            if card.name not in seen:
                seen.add(card.name)
                found.cards.append(card)
    return found


def _trainings(path: Path, left_out: list[str]) -> Iterator[TrainDocument]:
    """The run's own, and those that a frontier trained; the others are named in ``left_out``."""
    for file in [path / DOCUMENT, *sorted((path / "trained").glob(f"*/{DOCUMENT}"))]:
        if not file.exists():
            continue
        training = read_training(file.parent)
        if training.secret:
            why = "its noise has a secret key, so that nobody can make it again; train it with --seed 0"
            left_out.append(text.safe(f"the training in {str(file.parent)!r}: {why}", 300))
        else:
            yield training


def _is_public(training: TrainDocument) -> bool:
    """Whether it was made with no file of its maker."""
    return not OWN_NAMES.keys() & training.sources.keys()


def _card(path: Path, document: ResultDocument, row: SummaryRow, trainings: Sequence[TrainDocument]) -> Card:
    folder = RunFolder(path if os.path.isdir(path) else path.parent)
    stored = [_stored(folder, attack.cell) for attack in row.attacks]
    settings = CellSettings.model_validate(
        {name: value for name, value in stored[0].settings.items() if name in CellSettings.model_fields}
    )
    run = RunData(text.safe(path.name, 60), folder.path, settings={one.cell.key or "": one.settings for one in stored})
    told = findings(
        [one.cell for one in stored],
        {one.cell.key or "": one.victims for one in stored},
        version_of(stored[0].settings),
        [row],
    )
    if told:
        raise (Forged if told[0].kind == "differs" else UsageError)(told[0].line)
    fault = None if document.valid else document.valid_reason or "a negative control failed"
    training = next((one for one in trainings if _is_public(one) and is_of(settings, one.settings)), None)
    return make_card(stored, document.environment, fault, training, run)


def _stored(folder: RunFolder, key: str | None) -> StoredCell:
    stored = folder.find_cell(key or "")
    if stored is None:
        raise UsageError("the file of one of its cells is missing or damaged")
    files = [name for name in stored.settings if name not in CellSettings.model_fields and name not in _BESIDE]
    if files or stored.settings.get("weights") is not None:
        raise UsageError("it was made with files that a card does not hold")
    return stored
