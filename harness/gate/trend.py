"""Trend of each number over several runs, from their result documents, and the settings of their cells beside them."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UsageError
from harness.evaluation.derived import of_today
from harness.experiment import OPTIONS, CellSettings
from harness.gate.cells import read_run
from harness.gate.settings import defaults_of, effective, named, told_apart
from harness.results import CellResult, Place, StoredCell
from harness.results.record import WHOM
from harness.scoring.verdict import traces_p

# What identifies a cell from night to night; whom it attacks may change.
Find = Callable[[str], StoredCell | None]
_IDENTITY = {*Place.model_fields, "attack", "attack_args", "labels"}.difference(WHOM)


@dataclass(frozen=True)
class Point:
    """One cell's numbers in one run; None where the run lacks them.

    ``verdict``: ``invalid`` where that of the run must not be used. ``traces_p``: of a leak that no image shows.
    """

    asr: float | None = None
    ci95: tuple[float | None, float | None] | None = None
    mean_rank: float | None = None
    rmse: float | None = None
    verdict: str | None = None
    traces_p: float | None = None

    @property
    def known(self) -> bool:
        """Return whether the cell was evaluated in this run."""
        return self.verdict is not None


@dataclass(frozen=True)
class Trend:
    """A cell's points, one per run."""

    title: str
    points: list[Point]

    @property
    def span(self) -> float:
        """Largest distance that ASR or mean rank ever moved."""
        columns = ([p.asr for p in self.points], [p.mean_rank for p in self.points])
        known = [[value for value in column if value is not None] for column in columns]
        return max((max(values) - min(values) for values in known if values), default=0.0)


def trends(paths: Sequence[Path]) -> tuple[list[str], list[Trend], list[str], list[str]]:
    """Names of the readable runs in the given order, the trends, widest movement first, which runs were left out, and
    what is wrong with others. A run is left out where a verdict is not that of its victims.

    Raises:
        UsageError: there is no such place, or no run can be read; the message is that of the first.
    """
    names, cells, valid, left_out, problems = [], [], [], [], []
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"{str(path)!r} does not exist; check how it is written")
        try:
            document, stored, found = read_run(path)
        except UsageError as error:
            left_out.append(str(error))
            continue
        names.append(path.name if path.name != "results.json" else path.parent.name)
        files = {one.cell.key: one for one in stored}
        victims = {key: one.victims for key, one in files.items() if key}
        cells.append((of_today(document.cells, victims), files.get))
        valid.append(document.valid)
        problems += found
    if not cells:
        raise UsageError(left_out[0] if left_out else "no runs named; give the folders of harness evaluate, in order")
    return names, trends_of(with_settings(cells), valid), left_out, problems


def with_settings(runs: Sequence[tuple[Sequence[CellResult], Find]]) -> list[list[CellResult]]:
    """Return the cells of runs with the options that documents leave out, such as the learning rate.

    Args:
        runs: cells, and what finds a cell's own file by its key. Where any of them lacks one, all stay as they are:
            beside options of others, its cell would be another one.
    """
    told = [[_with_own(cell, find) if _counts(cell) else cell for cell in cells] for cells, find in runs]
    whole = [[one for one in run if one is not None] for run in told]
    return whole if [*map(len, whole)] == [*map(len, told)] else [list(cells) for cells, _ in runs]


def _with_own(cell: CellResult, find: Find) -> CellResult | None:
    if (stored := find(cell.key or "")) is None:
        return None
    usual = CellSettings().model_dump(mode="json") | defaults_of(stored.settings)  # pyright: ignore[reportCallIssue]
    own = effective(stored)
    left_out = own.keys() & {*OPTIONS} - {*Place.model_fields, *cell.cohort}
    options = {name: own[name] for name in sorted(left_out) if own[name] != usual.get(name)}
    return cell.model_copy(update={"options": cell.options | options}) if options else cell


def trends_of(runs: Sequence[Iterable[CellResult]], valid: Sequence[bool] = ()) -> list[Trend]:
    """Return how each cell moved over runs of which the cells are given, widest movement first.

    Args:
        runs: the cells of each.
        valid: whether the verdicts of each run may be used; all of them if empty.
    """
    counted = [{_identity(cell): cell for cell in cells if _counts(cell)} for cells in runs]
    cells = {key: cell for run in counted for key, cell in run.items()}
    titles = told_apart([(_title(cell), _settings(cell)) for cell in cells.values()])
    usable = valid or [True] * len(runs)
    made = [
        Trend(title, [_point(run.get(key), own) for run, own in zip(counted, usable, strict=True)])
        for key, title in zip(cells, titles, strict=True)
    ]
    return sorted(made, key=lambda trend: -trend.span)


def _counts(cell: CellResult) -> bool:
    return cell.role == "cell" and cell.not_applicable_reason is None


def _identity(cell: CellResult) -> str:
    return json.dumps(cell.model_dump(mode="json", include=_IDENTITY), sort_keys=True)


def _settings(cell: CellResult) -> dict[str, Any]:
    """Return what identifies the place, and every part of that by its own name."""
    own = cell.model_dump(mode="json", include=_IDENTITY)
    parts = {name: part for name, part in own.items() if isinstance(part, dict)}
    within = {
        key if name == "options" else f"{name.removesuffix('_args')}.{key}": value
        for name, part in parts.items()
        for key, value in part.items()
    }
    return {name: value for name, value in own.items() if name not in parts} | within


def _title(cell: CellResult) -> str:
    own = {f"defense.{name}": value for name, value in cell.defense_args.items() if name != "noise_scale"}
    who = named({"defense": cell.defense, "attack": cell.attack, "batch_size": cell.batch_size, **own})
    return f"{who} / {cell.attack} / {cell.tap} / {cell.dataset}"


def _point(cell: CellResult | None, valid: bool) -> Point:
    if cell is None:
        return Point()
    strict = cell.asr.get("strict")
    rmse = cell.metrics.get("rmse")
    return Point(
        strict.rate if strict else None, strict.ci95 if strict else None, (cell.identified or cell.lineup).mean_rank,
        rmse.median if rmse else None, *((cell.verdict_alone, traces_p(cell)) if valid else ("invalid", None)),
    )  # fmt: skip
