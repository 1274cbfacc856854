"""Cards of the rows of runs, from the stored cells of their attacks; where none can be made, the reason."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from harness.base.errors import UsageError, safe
from harness.board.reading import is_of
from harness.evaluation.derived import findings, version_of
from harness.evaluation.report_cell import covers
from harness.experiment import CellSettings
from harness.gate.cells import merged
from harness.own_sources import OWN_NAMES
from harness.papers.grid import SAMPLES
from harness.papers.judged import Published, published
from harness.reports.html.commands import evaluate_commands
from harness.reports.html.places import Shown
from harness.reports.html.run_data import RunData
from harness.reports.html.wording import label, setting
from harness.results import ResultDocument, RunFolder, Statement, StoredCell, SummaryRow, read_results
from harness.results.card import Card, CardCell, CardTraining, MeasuredVictims, Reported
from harness.results.record import Facts
from harness.scoring.summarise import summarise
from harness.training import TrainDocument, read_training
from harness.training.checkpoint import DOCUMENT

# What these tables attack.
_NETWORK = "lenet"
_PAPER = "Wei et al., Fed-αCDP"
_OF_A_MACHINE = ("versions", "machine", "processor", "device", "threads")


def make_card(
    stored: Sequence[StoredCell], environment: Mapping[str, object], fault: str | None, training: TrainDocument | None,
    run: RunData,
) -> Card:  # fmt: skip
    """The sealed card of the cells of one place.

    Args:
        stored: a cell per attack.
        environment: of their run. fault: why that must not be used; None where it may.
        training: a run of the very federation.
        run: for the command that people type.
    """
    stored = _in_order(stored)
    cells = [_cell(one) for one in stored]
    (row,) = summarise(one.result for one in cells)
    trained = None if training is None else _training(training)
    # What was not run says nothing of it.
    promised = next((one.cell.privacy for one in stored if one.cell.not_applicable_reason is None), [])
    shown = [Shown(run, one.cell, setting(one.cell), *label(one.cell.defense, one.cell.defense_args)) for one in stored]
    settings = CellSettings.model_validate(cells[0].settings)
    return Card(
        status="evaluated" if fault is None else "unreliable", reason=fault,
        reported=reported_for(settings),
        environment={name: environment.get(name) for name in _OF_A_MACHINE},  # pyright: ignore[reportArgumentType]
        command="\n".join(evaluate_commands(shown)), row=row, cells=cells, training=trained,
        statement=_statement(trained.privacy if trained else promised, settings),
    ).sealed()  # fmt: skip


def _in_order(stored: Sequence[StoredCell]) -> list[StoredCell]:
    """Each before the same with labels known, so that a card is the same whatever order its cells were computed in."""
    again = {one.cell.told for one in stored if one.cell.told}
    by_key = {one.cell.key: one for one in stored}
    firsts = [one for one in stored if one.cell.key not in again]
    return [one for first in firsts for one in (first, by_key.get(first.cell.told)) if one is not None]


def own_settings(stored: StoredCell) -> Facts:
    """Return what makes the cell, without what computed it."""
    return {name: value for name, value in stored.settings.items() if name in CellSettings.model_fields}


def _cell(stored: StoredCell) -> CardCell:
    cell = stored.cell
    # Seconds are a machine's, and LPIPS is had only where its weights are at hand.
    metrics = {name: value for name, value in cell.metrics.items() if name != "lpips"}
    (measured,) = [one.victims for one in merged([stored])] if stored.victims else [{}]
    victims = MeasuredVictims(
        names=list(measured), ranks=[one.rank for one in measured.values()],
        rmses=[one.rmse for one in measured.values()], successes=[one.success for one in measured.values()],
    )  # fmt: skip
    result = cell.model_copy(update={"seconds": None, "metrics": metrics})
    return CardCell(settings=own_settings(stored), result=result, victims=victims)


def _training(document: TrainDocument) -> CardTraining:
    return CardTraining(
        settings=document.settings, accuracy=document.accuracy, rounds=len(document.rounds),
        test_examples=document.test_examples, privacy=document.privacy,
    )  # fmt: skip


def _statement(statements: Sequence[Statement], settings: CellSettings) -> Statement | None:
    there = (one for one in statements if one.epsilon is not None and one.covers is not False)  # as of several looks
    covering = [one for one in there if covers(one, settings.tap)]
    return min(covering, key=lambda one: one.epsilon or 0.0, default=None)


def reported_for(settings: CellSettings) -> Reported | None:
    """The printed verdict on such a defense at such a tap on that dataset, or on the one that a sample is of."""
    full = {sample: data for data, sample in SAMPLES.items()}
    if settings.model != _NETWORK:
        return None
    data, defense = full.get(settings.dataset, settings.dataset), settings.build_defense()
    for one in _published():
        place = (one.data, str(one.tap), one.batch)
        if place != (data, str(settings.tap), settings.batch_size) or one.defense != settings.defense:
            continue
        same = settings.model_copy(update={"defense_args": one.arguments}).build_defense() == defense
        if one.resists in ("Y", "N") and same:
            return Reported(source=f"{_PAPER}, {one.source}: {one.method}", data=data, resists=one.resists)
    return None


@lru_cache(maxsize=1)
def _published() -> list[Published]:
    return published(quick=False)


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
                found.left_out.append(safe(f"{where}: {problem}", 300))
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
            left_out.append(safe(f"the training in {str(file.parent)!r}: {why}", 300))
        else:
            yield training


def _is_public(training: TrainDocument) -> bool:
    """Return whether it was made with no file of its maker."""
    return not OWN_NAMES.keys() & training.sources.keys()


def _card(path: Path, document: ResultDocument, row: SummaryRow, trainings: Sequence[TrainDocument]) -> Card:
    folder = RunFolder(path if os.path.isdir(path) else path.parent)
    stored = [_stored(folder, attack.cell) for attack in row.attacks]
    if all(one.is_impossible for one in stored):
        raise UsageError(stored[0].cell.not_applicable_reason or "no attack could run")
    settings = CellSettings.model_validate(
        {name: value for name, value in stored[0].settings.items() if name in CellSettings.model_fields}
    )
    run = RunData(safe(path.name, 60), folder.path, settings={one.cell.key or "": one.settings for one in stored})
    told = findings(
        [one.cell for one in stored],
        {one.cell.key or "": one.victims for one in stored},
        {one.cell.key or "": one for one in stored},
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
