"""The main job: all cells of a run, their controls, and the result document."""

from harness.errors import UsageError
from harness.evaluation.controls import NEGATIVE
from harness.evaluation.run import Run
from harness.evaluation.summarise import summarise
from harness.experiment import CellSettings
from harness.reports.success_curves import LOOKS, ROUNDS, save_success_curves
from harness.results import CellResult, ResultDocument
from harness.results.environment import environment


def evaluate(cells: list[CellSettings], run: Run) -> ResultDocument:
    """Evaluates cells one after another and writes results.json and victims.jsonl after each of them.

    Raises:
        UsageError: every cell is impossible; the message is that of the first.
    """
    for settings in cells:
        run.cell(settings)
        made = sorted(run.done.values(), key=lambda stored: stored.cell.role)
        document = document_of([stored.cell for stored in made], cells[0].device)
        run.folder.write_results(document, [record for stored in made for record in stored.victims])
    if run.pictures:
        for name, axis in (("observations", LOOKS), ("rounds", ROUNDS)):
            save_success_curves(run.folder.pictures / f"{name}.png", document.cells, axis)
    asked = [cell for cell in document.cells if cell.role == "cell"]
    if all(cell.not_applicable_reason for cell in asked):
        raise UsageError(asked[0].not_applicable_reason or "no cell could be evaluated")
    return document


def document_of(cells: list[CellResult], device: str) -> ResultDocument:
    """The result document of evaluated cells; invalid when a negative control failed anywhere."""
    failed = [
        f"negative control {check.name} failed for {cell.attack} against {cell.defense} at {cell.tap} ({check.detail})"
        for cell in cells
        for check in cell.controls
        if check.name in NEGATIVE and not check.held and check.detail.startswith("lineup p")
    ]
    return ResultDocument(
        environment=environment(device), valid=not failed, valid_reason=failed[0] if failed else None, cells=cells,
        summary=summarise(cells),
    )  # fmt: skip
