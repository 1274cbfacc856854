"""The main job: all cells of a run, their controls, and the result document."""

import time
from collections.abc import Mapping, Sequence

from harness.base.errors import UsageError
from harness.evaluation.run import Run
from harness.experiment import CellSettings
from harness.results import CellResult, ResultDocument, StoredCell
from harness.results.environment import environment
from harness.results.record import Facts
from harness.scoring.summarise import summarise
from harness.scoring.verdict import fault_of

# Writing the document takes longer with every cell of it, and may take this share of a run's time.
_SHARE = 0.05


def evaluate(cells: list[CellSettings], run: Run) -> ResultDocument:
    """Evaluates cells one after another; writes results.json and victims.jsonl at the end, and now and then before.

    Where no cell is possible nothing is written, and what an earlier run left is kept.

    Raises:
        UsageError: there are no cells, or every one is impossible; the message is that of the first.
    """
    if not cells:
        raise UsageError("there is no cell to evaluate; name a defense and an attack")
    asked: list[StoredCell] = []
    written, took = 0.0, 0.0
    with run.outlook.over(cells, run.at_hand):
        for settings in cells:
            asked.append(run.cell(settings))
            began = time.monotonic()
            if len(asked) < len(cells) and not _impossible(asked) and began - written > took / _SHARE:
                _write(asked, run, cells[0].device, complete=False)
                written = time.monotonic()
                took = written - began
    if _impossible(asked):
        raise UsageError(asked[0].cell.not_applicable_reason or "no cell could be evaluated")
    return _write(asked, run, cells[0].device)


def _impossible(asked: Sequence[StoredCell]) -> bool:
    return all(stored.is_impossible for stored in asked)


def _write(asked: Sequence[StoredCell], run: Run, device: str, complete: bool = True) -> ResultDocument:
    made = with_controls(asked, run.done)
    whole = document_of([stored.cell for stored in made], environment(device))
    document = whole if complete else _unfinished(whole, run.outlook.total)
    run.folder.write_results(document, [record for stored in made for record in stored.victims])
    return document


def _unfinished(document: ResultDocument, planned: int | None) -> ResultDocument:
    """What stands in the folder while the run goes on, and is left there by one that was stopped."""
    told = {cell.told for cell in document.cells}
    done = sum(cell.role == "cell" and cell.key not in told for cell in document.cells)
    reason = f"{done} of {planned} cells are done; add --resume to the same command to go on"
    return document.model_copy(update={"valid": False, "valid_reason": reason, "complete": False, "planned": planned})


def with_controls(asked: Sequence[StoredCell], done: Mapping[str, StoredCell]) -> list[StoredCell]:
    """Cells in the order asked for, each before the same with labels known, then their controls in the order of the
    cells: the same whoever made which.

    Args:
        done: cells and controls by their keys.
    """
    cells = {one.cell.key: one for one in with_told(asked, done)}
    keys = (key for stored in cells.values() for key in stored.cell.needed)
    return [*cells.values(), *(done[key] for key in dict.fromkeys(keys) if key not in cells)]


def with_told(asked: Sequence[StoredCell], done: Mapping[str, StoredCell]) -> list[StoredCell]:
    """Cells in the order asked for, each before the same with labels known where a suite ran it again."""
    return [one for stored in asked for one in (stored, *([done[stored.cell.told]] if stored.cell.told else []))]


def document_of(cells: list[CellResult], made_in: Facts) -> ResultDocument:
    """The result document of cells that were evaluated in an environment."""
    fault = fault_of(cells)
    return ResultDocument(
        environment=made_in, valid=fault is None, valid_reason=fault, cells=cells, summary=summarise(cells),
        planned=sum(cell.role == "cell" for cell in cells),
    )  # fmt: skip
