"""A card of one row: from the stored cells of its attacks, wherever they were made."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from harness.base.building import build
from harness.defenses import DEFENSES
from harness.evaluation.promised import covers
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.gate.cells import merged
from harness.papers.grid import SAMPLES
from harness.papers.judged import Published, published
from harness.reports.html.commands import evaluate_commands
from harness.reports.html.places import Shown
from harness.reports.html.run_data import RunData
from harness.reports.html.wording import label, setting
from harness.results import Statement, StoredCell
from harness.results.card import Card, CardCell, CardTraining, MeasuredVictims, Reported
from harness.results.record import Facts
from harness.scoring.summarise import summarise
from harness.training import TrainDocument

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
    shown = [Shown(run, one.cell, setting(one.cell), *label(one.cell.defense, one.cell.defense_args)) for one in stored]
    return Card(
        status="evaluated" if fault is None else "unreliable", reason=fault,
        reported=reported_for(CellSettings.model_validate(cells[0].settings)),
        environment={name: environment.get(name) for name in _OF_A_MACHINE},  # pyright: ignore[reportArgumentType]
        command="\n".join(evaluate_commands(shown)), row=row, cells=cells, training=trained,
        statement=_statement(trained.privacy if trained else stored[0].cell.privacy, Tap(row.tap)),
    ).sealed()  # fmt: skip


def _in_order(stored: Sequence[StoredCell]) -> list[StoredCell]:
    """Each before the same with labels known, so that a card is the same whatever order its cells were computed in."""
    again = {one.cell.told for one in stored if one.cell.told}
    by_key = {one.cell.key: one for one in stored}
    firsts = [one for one in stored if one.cell.key not in again]
    return [one for first in firsts for one in (first, by_key.get(first.cell.told)) if one is not None]


def own_settings(stored: StoredCell) -> Facts:
    """What makes the cell, without what computed it."""
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


def _statement(statements: Sequence[Statement], tap: Tap) -> Statement | None:
    covering = [one for one in statements if covers(one, tap) and one.epsilon is not None]
    return min(covering, key=lambda one: one.epsilon or 0.0, default=None)


def reported_for(settings: CellSettings) -> Reported | None:
    """The printed verdict on such a defense at such a tap on that dataset, or on the one that a sample is of."""
    full = {sample: data for data, sample in SAMPLES.items()}
    if settings.model != _NETWORK:
        return None
    data, defense = full.get(settings.dataset, settings.dataset), settings.build_defense()
    for one in _published():
        place = (one.data, str(one.tap), one.batch)
        alike = place == (data, str(settings.tap), settings.batch_size) and one.defense == settings.defense
        if alike and one.resists in ("Y", "N") and build(DEFENSES, one.defense, one.arguments) == defense:
            return Reported(source=f"{_PAPER}, {one.source}: {one.method}", data=data, resists=one.resists)
    return None


@lru_cache(maxsize=1)
def _published() -> list[Published]:
    return published(quick=False)
