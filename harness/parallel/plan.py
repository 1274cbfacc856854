"""Plan of a whole sharded run, written by every shard: a merger knows what is missing and who makes it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.base.errors import UsageError
from harness.base.progress import within
from harness.evaluation.derived import differing_in
from harness.evaluation.run import Run, document_of, require_derived, with_controls
from harness.experiment import CellSettings
from harness.parallel.units import Job, Shard, units_of
from harness.results import ResultDocument, RunFolder, StoredCell, cell_key, write_atomic
from harness.results.environment import environment
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, Damaged, Unreadable, checked, parse_json, read_bytes
from harness.results.record import Count, Facts, Record

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
    cells: list[PlannedCell] = Field(min_length=1)
    environment: Facts

    def command_of(self, shard: int, out: str) -> str:
        """Return what makes a shard, or the rest of it, into a folder."""
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
    with within(f"shard {shard}"), run.forecast.over([cell for unit in own for cell in unit.cells], run.at_hand):
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


# `harness merge`: the cells of a run's shards as one run.

_DIFFERENCES = (
    ("the numbers of shards", lambda plan: plan.shards),
    ("the versions", lambda plan: plan.environment.get("versions")),
    ("the commits", lambda plan: plan.environment.get("git")),
    ("the threads (give all --threads)", lambda plan: plan.environment.get("threads")),
    # By their keys, which know every setting: places of files and ways to print may differ.
    ("the cells", lambda plan: plan.cells),
)


def merge(folders: Sequence[Path], out: Path) -> ResultDocument:
    """Puts the cells of all shards into ``out``, which may be the folder they share, and writes the document there.

    Raises:
        UsageError: no shard began in these folders; they are of different runs or versions; one is missing or not
            finished, which is named with the command that makes it; a verdict is not that of its victims.
    """
    plan = _common_plan(folders)
    runs = [RunFolder(folder) for folder in folders]
    asked = _cells_of(plan, runs, str(folders[0]))
    done = _controls_of(asked, runs)
    made = with_controls(asked, done)
    require_derived(made)
    target = RunFolder(out)
    for stored in made:
        target.write_cell(stored.cell.key or "", stored.settings, stored.cell, stored.victims)
        _copy_picture(stored, runs, target)
    document = document_of([stored.cell for stored in made], plan.environment)
    target.write_results(document, [record for stored in made for record in stored.victims])
    return document


def _common_plan(folders: Sequence[Path]) -> Plan:
    plans = [(folder, plan) for folder in folders for plan in read_plans(folder)]
    if not plans:
        raise UsageError(
            f"no shard was made in {', '.join(map(str, folders))}; make them with harness evaluate ... --shard 1/4"
        )
    first_folder, first = plans[0]
    for folder, plan in plans[1:]:
        for what, of in _DIFFERENCES:
            if of(plan) != of(first):
                raise UsageError(
                    f"{what} of shard {plan.shard}/{plan.shards} in {str(folder)!r} and of shard "
                    f"{first.shard}/{first.shards} in {str(first_folder)!r} differ; merge shards of one run"
                )
    return first


def _cells_of(plan: Plan, runs: Sequence[RunFolder], out: str) -> list[StoredCell]:
    found = {cell.key: _find(cell.key, runs) for cell in plan.cells}
    for shard in sorted({cell.shard for cell in plan.cells}):
        keys = [cell.key for cell in plan.cells if cell.shard == shard]
        absent = [key for key in keys if found[key] is None]
        if absent:
            state = "is missing" if len(absent) == len(keys) else f"lacks {len(absent)} of its {len(keys)} cells"
            raise UsageError(f"shard {shard}/{plan.shards} {state}; make it with: {plan.command_of(shard, out)}")
    return [stored for stored in found.values() if stored is not None]


def _controls_of(asked: Sequence[StoredCell], runs: Sequence[RunFolder]) -> dict[str, StoredCell]:
    done: dict[str, StoredCell] = {}
    waiting = list(asked)
    while waiting:
        stored = waiting.pop(0)
        for key in (key for key in stored.cell.needed if key not in done):
            control = _find(key, runs)
            if control is None:
                raise UsageError(
                    f"control {key} of {stored.cell.defense} is missing or damaged; make its shard again, it takes "
                    "what is there"
                )
            done[key] = control
            if key == stored.cell.told:
                waiting.append(control)  # it has controls of its own
    return done


def _find(key: str, runs: Sequence[RunFolder]) -> StoredCell | None:
    """The cell of this key, of the first folder that has it, or None. Last digits may differ, as of another machine.

    Raises:
        UsageError: two folders have it with other numbers, or another verdict.
    """
    found = [(run.path, one) for run in runs if (one := run.find_cell(key)) is not None]
    for path, other in found[1:]:
        if next(differing_in(_numbers(found[0][1]), _numbers(other), ""), None) is not None:
            raise UsageError(
                f"{other.cell.attack} against {other.cell.defense} at {other.cell.tap} on {other.cell.dataset} (cell "
                f"{key}) has other numbers in {str(path)!r} than in {str(found[0][0])!r}; leave one of them out"
            )
    return found[0][1] if found else None


def _numbers(stored: StoredCell) -> dict[str, Any]:
    """Return all that a cell's file says, but how long it took."""
    return stored.model_copy(update={"cell": stored.cell.model_copy(update={"seconds": None})}).model_dump(mode="json")


def _copy_picture(stored: StoredCell, runs: Sequence[RunFolder], target: RunFolder) -> None:
    key = stored.cell.key or ""
    for run in runs:
        if run.path == target.path:
            continue
        try:
            write_atomic(target.picture(key), read_bytes(run.picture(key)))
        except Absent:
            continue
