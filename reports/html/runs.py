"""Runs as the report needs them. What is readable is used; what is not is named, with the reason."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.base.errors import UsageError
from harness.base.version import SCHEMA_VERSION
from harness.evaluation.derived import findings, of_run, of_today, version_of
from harness.reports import text
from harness.reports.html.judged import Judged
from harness.reports.html.run_data import RunData, UnreadableRun, inside, read_json, read_lines
from harness.results import CellResult, StoredCell, SummaryRow, VictimRecord
from harness.results.files import Damaged, checked
from harness.results.training import TrainDocument
from harness.scoring.summarise import summarise
from harness.scoring.verdict import fault_of

MOST_CELLS, MOST_VICTIMS = 2_000, 300_000


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """Everything readable in these folders (or files within them), each folder once.

    Raises:
        UsageError: nothing is readable in any of them.
    """
    found = [(path, path if os.path.isdir(path) else path.parent) for path in paths if _is_run(path)]
    folders = list({folder.resolve(): folder for _, folder in found}.values())
    runs = [_read(folder, _name(folder, folders)) for folder in folders]
    missing = [path for path in paths if not _is_run(path)]
    if not any(run.cells or run.training or run.judged for run in runs):
        reasons = [f"{text.safe(str(path), 200)!r} is no folder of a run" for path in missing]
        reasons += [f"{text.safe(str(run.folder), 200)!r}: {reason}" for run in runs for reason in run.left_out]
        raise UsageError(
            f"nothing to report ({'; '.join(reasons[:3]) or 'no run was named'}); "
            "give folders that harness evaluate, judge or train wrote"
        )
    for path in missing:
        runs[0].skip(f"{path}, named beside it, is no folder of a run")
    return runs


def with_trainings(runs: Sequence[RunData]) -> list[RunData]:
    """The runs, each with what a frontier trained in its folder, as runs of their own; each folder once."""
    known = {run.folder.resolve() for run in runs}
    return [one for run in runs for one in (run, *_trainings(run, known))]


def _trainings(run: RunData, known: set[Path]) -> Iterator[RunData]:
    try:
        points = read_json(run.folder, "frontier.json", only=["points"]).get("points")
    except UnreadableRun as problem:
        if not problem.absent:
            run.skip(f"frontier.json {problem}")
        return
    named = [one.get("training") for one in points if isinstance(one, dict)] if isinstance(points, list) else []
    folders = dict.fromkeys(name for name in named if isinstance(name, str))  # taps share one
    if len(folders) > MOST_CELLS:
        run.skip(f"{len(folders) - MOST_CELLS} trainings of frontier.json beyond the first {MOST_CELLS}")
    for number, name in enumerate(islice(folders, MOST_CELLS), 1):
        try:
            file = inside(run.folder, name, "training.json")
        except UnreadableRun as problem:
            run.skip(f"{name}/training.json {problem}")
            continue
        if (place := file.parent.resolve()) not in known:
            known.add(place)
            yield _read(file.parent, text.safe(f"{run.name}, training {number}", 60))


def _is_run(path: Path) -> bool:
    return os.path.isdir(path) or path.name in ("results.json", "judged.json", "training.json")


def _name(folder: Path, folders: Sequence[Path]) -> str:
    """The folder's last name, with its place in the list where another has the same."""
    own = folder.resolve().name or "run"
    alike = [other for other in folders if other.resolve().name == own]
    return text.safe(own if len(alike) == 1 else f"{own} ({folders.index(folder) + 1})", 60)


def _read(folder: Path, name: str) -> RunData:
    run = RunData(name, folder)
    found = [_read_judged(run), _read_results(run), _read_training(run)]
    if run.judged and not run.judged.valid and run.valid:
        run.valid, run.valid_reason = False, run.judged.fault
    run.written = _written(run)
    if not any(found) and not run.left_out:
        run.skip("holds neither results.json nor judged.json nor training.json")
    if run.cells:
        if not run.victims:
            _read_victims(run)
        _read_files(run)
        _hold_verdicts(run)
    return run


def _read_judged(run: RunData) -> bool:
    try:
        run.judged = Judged.model_validate(read_json(run.folder, "judged.json"))
    except UnreadableRun as problem:
        if not problem.absent:
            run.skip(f"judged.json {problem}")
    except ValidationError:
        run.skip("judged.json is not as harness judge writes it; run harness judge again")
    return run.judged is not None


def _is_there(run: RunData, name: str) -> bool:
    try:
        return inside(run.folder, name).is_file()
    except UnreadableRun as problem:
        return not problem.absent


def _written(run: RunData) -> float | None:
    """Return when the last of its documents was written; None where there are none."""
    times = []
    for name in ("results.json", "judged.json", "training.json"):
        with suppress(UnreadableRun, OSError):
            times.append(inside(run.folder, name).stat().st_mtime)
    return max(times, default=None)


def _read_results(run: RunData) -> bool:
    try:
        document = read_json(run.folder, "results.json")
        cells = document.get("cells")
        if not isinstance(cells, list):
            raise UnreadableRun("is not a result of harness evaluate")
        if document.get("schema_version") != SCHEMA_VERSION:
            raise UnreadableRun(f"has another result schema than {SCHEMA_VERSION}; run harness evaluate again")
    except UnreadableRun as problem:
        if not problem.absent:
            run.skip(f"results.json {problem}")
        # Without a truth only stand-ins were attacked, of whom there is no verdict.
        return False if _is_there(run, "judged.json") else _rescue(run)
    environment, reason = document.get("environment"), document.get("valid_reason")
    run.environment = environment if isinstance(environment, dict) else {}
    run.complete = document.get("complete") is not False
    run.valid = document.get("valid") is True and run.complete
    run.valid_reason = reason if isinstance(reason, str) else None
    if "valid" not in document:
        run.skip("results.json does not say whether the run is valid, so it counts as invalid")
    _take_cells(run, cells)
    _take_summary(run, document.get("summary"))
    return True


def _take_cells(run: RunData, cells: list[Any]) -> None:
    broken = 0
    for entry in cells[:MOST_CELLS]:
        try:
            run.cells.append(CellResult.model_validate(entry))
        except ValidationError:
            broken += 1
    if broken:
        run.skip(f"{broken} of {len(cells)} cells break the result schema")
    if len(cells) > MOST_CELLS:
        run.skip(f"{len(cells) - MOST_CELLS} cells beyond the first {MOST_CELLS}")
    if not cells:
        run.skip("results.json holds no cells")


def _take_summary(run: RunData, rows: Any) -> None:
    """The document's own summary; where it is missing or broken, it is made again from the cells."""
    try:
        run.summary = [SummaryRow.model_validate(row) for row in rows] if isinstance(rows, list) else []
    except ValidationError:
        run.skip("the summary breaks the result schema and was made again from the cells")
        run.summary = []
    run.summary = run.summary or summarise(run.cells)


def _rescue(run: RunData) -> bool:
    """Finished cells of a run that has no results.json which can be read."""
    for file in sorted((run.folder / "cells").glob("*.json"))[:MOST_CELLS]:
        try:
            stored = StoredCell.model_validate(read_json(run.folder, "cells", file.name))
        except (UnreadableRun, ValidationError):
            run.skip(f"cells/{file.name} does not hold a whole cell")
            continue
        run.cells.append(stored.cell)
        run.victims[stored.cell.key or ""] = stored.victims
    if run.cells:
        run.skip(f"results.json; {len(run.cells)} finished cells were read from the folder cells instead")
        run.complete = _is_there(run, "results.json")  # it is written in the end at the latest
        unfinished = None if run.complete else f"{len(run.cells)} cells and controls are done, it has no results.json"
        run.valid_reason = unfinished or fault_of(run.cells)
        run.valid = run.valid_reason is None
        run.summary = summarise(run.cells)
    return bool(run.cells)


def _read_training(run: RunData) -> bool:
    try:
        run.training = checked(TrainDocument, read_json(run.folder, "training.json"))
    except UnreadableRun as problem:
        if not problem.absent:
            run.skip(f"training.json {problem}")
    except Damaged as problem:
        run.skip(f"training.json {problem}")
    return run.training is not None


def _read_victims(run: RunData) -> None:
    broken = taken = 0
    keys = {cell.key for cell in run.cells}
    try:
        for line in read_lines(run.folder, "victims.jsonl"):
            try:
                record = VictimRecord.model_validate_json(line)
            except ValidationError:
                broken += 1
                continue
            if record.cell in keys and taken < MOST_VICTIMS:
                run.victims.setdefault(record.cell, []).append(record)
                taken += 1
    except UnreadableRun as problem:
        run.skip(f"victims.jsonl {problem}; there are no distributions")
    else:
        lost = [cell for cell in run.cells if _attacked(cell) and cell.key not in run.victims]
        if lost and taken < MOST_VICTIMS:
            run.skip(f"the victims of {len(lost)} of {len(run.cells)} cells, which are not in victims.jsonl")
    if broken:
        run.skip(f"{broken} lines of victims.jsonl that are no victims of this schema")


def _hold_verdicts(run: RunData) -> None:
    """Tells verdicts of other rules, of which today's are shown, and those that nothing bears out.

    Raises:
        UsageError: a verdict is not that of its victims.
    """
    # A cell's own file is named by what it says of its version; a document is not.
    version = version_of(next(iter(run.settings.values()), {})) or version_of(run.environment)
    found = of_run(run.cells, run.valid, version)
    found += findings(run.cells, run.victims, run.files, version, run.summary)
    told = {kind: [one.line for one in found if one.kind == kind] for kind in ("differs", "outdated", "unchecked")}
    if told["differs"]:
        raise UsageError(f"{str(run.folder)!r}: {told['differs'][0]}; run harness evaluate again")
    for line in told["outdated"]:
        run.tell(line)
    if told["outdated"]:
        run.cells = of_today(run.cells, run.victims)
        run.summary = summarise(run.cells)
    if told["unchecked"]:
        first, *more = told["unchecked"]
        run.tell(first + (f"; and {len(more)} more" if more else ""))


def _attacked(cell: CellResult) -> bool:
    return any(count for outcome, count in cell.outcomes if outcome != "not_applicable")


def _read_files(run: RunData) -> None:
    for key in {cell.key for cell in run.cells if cell.key and cell.key.isalnum()}:
        try:
            found = read_json(run.folder, "cells", f"{key}.json", only=["schema_version", "settings", "cell"])
        except UnreadableRun:
            continue
        if isinstance(settings := found.get("settings"), dict):
            run.settings[key] = settings
        with suppress(ValidationError):
            run.files[key] = StoredCell.model_validate(found | {"victims": []})


# Making a page keeps a million small things until it is done; looking through them for garbage takes as long again.


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pauses Python's collector of cycles, which frees nothing while all of it is still needed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
