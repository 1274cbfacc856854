"""Captured clients whose truth is at hand: everything that ``evaluate`` says of simulated ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.datasets.public import NONE
from harness.evaluation import Run, evaluate
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.scores import Scored
from harness.judging.declared import Group
from harness.judging.kin import Kin
from harness.judging.stage import CapturedStage, GroupsStage
from harness.results import CellResult, ResultDocument, RunFolder


def judge_with_truth(
    groups: Sequence[Group], kin: Kin | None, data_root: Path, folder: RunFolder, chunk: int, resume: bool,
    draw: Callable[[Scored, CellResult], None] | None = None, engine: Engine = in_one_process,
) -> ResultDocument:  # fmt: skip
    """Attacks what was captured and scores it against the truth, with controls on the same clients simulated.

    Args:
        groups: clients with their truth.
        kin: look-alikes and public data; None where there are none, and then no verdict.
        engine: what attacks.

    Raises:
        UsageError: every cell is impossible; the message is that of the first.
    """
    cells = [cell for group in groups for cell in group.cells]
    public = kin.public if kin and any(cell.prior != NONE for cell in cells) else None
    stages = {
        group.cell.dataset: CapturedStage(data_root, chunk, group.captured, group.cell, kin and kin.look_alikes, public)
        for group in groups
    }
    stage = GroupsStage(data_root, chunk, stages)
    return evaluate(cells, Run(data_root, folder, chunk, resume, draw, stage=stage, engine=engine))
