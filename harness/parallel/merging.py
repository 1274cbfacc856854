"""``harness merge``: the cells of a run's shards as one run."""

from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UsageError
from harness.evaluation.main_job import document_of, with_controls
from harness.parallel.plan import Plan, read_plans
from harness.results import ResultDocument, RunFolder, StoredCell, write_atomic
from harness.results.files import Absent, read_bytes
from harness.scoring.derived import findings, version_of

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
    _require_derived(made)
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
    for shard in range(1, plan.shards + 1):
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


def _require_derived(made: Sequence[StoredCell]) -> None:
    """Verdicts are merged only where their victims say the same."""
    victims = {stored.cell.key or "": stored.victims for stored in made}
    version = version_of(made[0].settings) if made else None
    for found in findings([stored.cell for stored in made], victims, version):
        raise UsageError(f"{found.line}; delete the file of that cell and make its shard again")


def _find(key: str, runs: Sequence[RunFolder]) -> StoredCell | None:
    return next((found for run in runs if (found := run.find_cell(key)) is not None), None)


def _copy_picture(stored: StoredCell, runs: Sequence[RunFolder], target: RunFolder) -> None:
    key = stored.cell.key or ""
    for run in runs:
        if run.path == target.path:
            continue
        try:
            write_atomic(target.picture(key), read_bytes(run.picture(key)))
        except Absent:
            continue
