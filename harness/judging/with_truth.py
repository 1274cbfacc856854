"""Captured clients whose truth is at hand: everything that ``evaluate`` says of simulated ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.datasets.public import NONE
from harness.evaluation import Run, evaluate
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.scored import Scored
from harness.experiment import CellSettings
from harness.judging.federation import CapturedClients
from harness.judging.kin import Kin
from harness.judging.stage import CapturedStage
from harness.results import CellResult, ResultDocument, RunFolder


def judge_with_truth(
    captured: CapturedClients, cells: Sequence[CellSettings], kin: Kin | None, data_root: Path, folder: RunFolder,
    chunk: int, resume: bool, draw: Callable[[Scored, CellResult], None] | None = None,
    engine: Engine = in_one_process,
) -> ResultDocument:  # fmt: skip
    """Attacks what was captured and scores it against the truth, with controls on the same clients simulated.

    Args:
        captured: with its truth.
        cells: of the declared defense, one for each attack.
        kin: look-alikes and public data; None where there are none, and then no verdict.
        engine: what attacks.

    Raises:
        UsageError: every cell is impossible; the message is that of the first.
    """
    public = kin.public if kin and any(cell.prior != NONE for cell in cells) else None
    stage = CapturedStage(data_root, chunk, captured, cells[0], kin and kin.look_alikes, public)
    return evaluate(list(cells), Run(data_root, folder, chunk, resume, draw, stage=stage, engine=engine))
