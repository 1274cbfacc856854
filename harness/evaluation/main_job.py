"""The main job: all cells of a run, their controls, and the result document."""

from harness.errors import UsageError
from harness.evaluation.run import Run
from harness.experiment import CellSettings
from harness.results import CellResult, ResultDocument
from harness.results.environment import environment
from harness.scoring.summarise import summarise
from harness.scoring.validity import fault_of


def evaluate(cells: list[CellSettings], run: Run) -> ResultDocument:
    """Evaluates cells one after another and writes results.json and victims.jsonl after each of them.

    Raises:
        UsageError: there are no cells, or every one is impossible; the message is that of the first.
    """
    if not cells:
        raise UsageError("there is no cell to evaluate; name a defense and an attack")
    with run.outlook.over(cells, run.at_hand):
        for settings in cells:
            run.cell(settings)
            made = sorted(run.done.values(), key=lambda stored: stored.cell.role)
            document = document_of([stored.cell for stored in made], cells[0].device)
            run.folder.write_results(document, [record for stored in made for record in stored.victims])
    asked = [cell for cell in document.cells if cell.role == "cell"]
    if all(cell.not_applicable_reason for cell in asked):
        raise UsageError(asked[0].not_applicable_reason or "no cell could be evaluated")
    return document


def document_of(cells: list[CellResult], device: str) -> ResultDocument:
    """The result document of evaluated cells."""
    fault = fault_of(cells)
    return ResultDocument(
        environment=environment(device), valid=fault is None, valid_reason=fault, cells=cells, summary=summarise(cells)
    )
