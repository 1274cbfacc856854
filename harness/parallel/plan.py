"""What a sharded run is to consist of: every shard says it, so that a merger knows what is missing and who makes it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UsageError
from harness.base.progress import within
from harness.evaluation.main_job import document_of, with_controls
from harness.evaluation.run import Run
from harness.experiment import CellSettings
from harness.parallel.shard import Shard
from harness.parallel.units import units_of
from harness.parallel.worker import Job
from harness.results import ResultDocument, cell_key, write_atomic
from harness.results.environment import environment
from harness.results.files import MOST_OF_A_DOCUMENT, Unreadable, read_bytes
from harness.results.record import Count, Facts, Record
from harness.results.stored import Damaged, checked, parse_json

FOLDER = "shards"


class PlannedCell(Record):
    """A cell by its key, and the shard that makes it, from 1."""

    key: str
    shard: Count


class Plan(Record):
    """One shard of a run.

    ``command`` is the run's, without its shard and its folder; ``cells`` are those of the whole run in the order
    asked for; ``environment`` is the one that this shard was made in.
    """

    shard: Count
    shards: Count
    command: list[str]
    cells: list[PlannedCell]
    environment: Facts

    def command_of(self, shard: int, out: str) -> str:
        """What makes a shard, or the rest of it, into a folder."""
        return shlex.join(["harness", *self.command, "--shard", f"{shard}/{self.shards}", "--out", out])


def plan_of(cells: Sequence[CellSettings], run: Run, shard: Shard, command: Sequence[str]) -> Plan:
    """The plan of a shard, by the whole run's cells."""
    units = units_of(cells, run)
    makers: dict[str, int] = {}
    for index in range(1, shard.count + 1):
        for unit in Shard(index, shard.count).of(units):
            makers |= dict.fromkeys((cell_key(run.identity(settings)) for settings in unit.cells), index)
    keys = dict.fromkeys(cell_key(run.identity(settings)) for settings in cells)
    return Plan(
        shard=shard.index, shards=shard.count, command=list(command),
        cells=[PlannedCell(key=key, shard=makers[key]) for key in keys], environment=environment(cells[0].device),
    )  # fmt: skip


def make_shard(cells: Sequence[CellSettings], job: Job, shard: Shard, command: Sequence[str]) -> ResultDocument:
    """Makes a shard's cells in the folder that it may share with others, after it wrote there what the run is to be.

    Args:
        cells: of the whole run.
        command: what was asked for, without the shard and its folder.

    Returns:
        The document of its own cells, which is not written.

    Raises:
        UsageError: there are no cells at all, or the folder cannot be written.
    """
    if not cells:
        raise UsageError("there is no cell to evaluate; name a defense and an attack")
    run = job.run()
    plan = plan_of(cells, run, shard, command)
    write_plan(job.out, plan)
    own = shard.of(units_of(cells, run))
    with within(f"shard {shard}"), run.outlook.over([cell for unit in own for cell in unit.cells], run.at_hand):
        for unit in own:
            unit.make(run)
    run.write_impossible()  # a merger knows a cell by its file
    asked = [run.done[cell.key] for cell in plan.cells if cell.shard == shard.index]
    return document_of([stored.cell for stored in with_controls(asked, run.done)], plan.environment)


def write_plan(folder: Path, plan: Plan) -> None:
    """Raises OutputError where the folder cannot be written."""
    write_atomic(folder / FOLDER / f"{plan.shard}-of-{plan.shards}.json", plan.model_dump_json(indent=1).encode())


def read_plans(folder: Path) -> list[Plan]:
    """The plans of the shards that began in a folder, in their order.

    Raises:
        UsageError: one cannot be read, or is damaged.
    """
    found = []
    for path in sorted((folder / FOLDER).glob("*-of-*.json")):
        try:
            found.append(checked(Plan, parse_json(read_bytes(path, MOST_OF_A_DOCUMENT))))
        except (Unreadable, Damaged) as problem:
            raise UsageError(f"{str(path)!r} is no plan of a shard ({problem}); make that shard again") from problem
    return sorted(found, key=lambda plan: plan.shard)
