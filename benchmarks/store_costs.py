"""Measure the cost of a cell as a run grows: to store, find, merge and show it.

python benchmarks/store_costs.py [CELLS ...]    (100 1000 2000 10000)
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.base.limits import peak_memory
from harness.base.version import SCHEMA_VERSION
from harness.datasets import data_root as find_data_root
from harness.evaluation import Run, document_of
from harness.experiment import cell_settings
from harness.parallel.plan import Plan, PlannedCell, merge, write_plan
from harness.reports.html import make_page, read_runs, without_collecting
from harness.results import RunFolder, StoredCell, VictimRecord, cell_key
from harness.results.environment import environment
from harness.results.record import Facts

#: Cells that a report is made of; it refuses more than these.
MOST_REPORTED = 2_000
_SHARDS = 4


def bench_store(counts: Sequence[int], data_root: Path) -> Iterator[dict[str, Any]]:
    """A row per number of cells, as it is measured: all are copies of one cell that was really made, with its controls.

    Args:
        counts: of cells, growing.
        data_root: where datasets lie.

    Returns:
        Milliseconds per cell to store it, to find it again and write the document, and to merge the shards it is dealt
        to; seconds and megabytes of the report, null beyond what a report holds; and the most memory so far.
    """
    with tempfile.TemporaryDirectory(prefix="harness-") as place:
        template, controls = _template(Path(place) / "template", data_root)
        for count in counts:
            cells = [_copy(template, number) for number in range(count)]
            yield _row(cells, controls, Path(place) / str(count))


def _template(folder: Path, data_root: Path) -> tuple[StoredCell, list[StoredCell]]:
    settings = cell_settings(
        dataset="digits", model="mlp2", defense="fed_cdp", attack="idlg", attack_args={"max_iterations": 2}, victims=2
    )
    run = Run(data_root, RunFolder(folder))
    stored = run.cell(settings)
    return stored, [made for made in run.done.values() if made is not stored]


def _copy(stored: StoredCell, number: int) -> StoredCell:
    """The same cell with another noise multiplier."""
    arguments = stored.cell.defense_args | {"sigma": 6 + number}
    settings: Facts = {**stored.settings, "defense_args": {"sigma": 6 + number}}
    key = cell_key(settings)
    cell = stored.cell.model_copy(update={"key": key, "defense_args": arguments})
    victims: list[VictimRecord] = [victim.model_copy(update={"cell": key}) for victim in stored.victims]
    return StoredCell(schema_version=SCHEMA_VERSION, settings=settings, cell=cell, victims=victims)


def _row(cells: Sequence[StoredCell], controls: Sequence[StoredCell], place: Path) -> dict[str, Any]:
    count, folder = len(cells), RunFolder(place / "run")
    row: dict[str, Any] = {"cells": count}
    row["store ms"] = _each(count, lambda: _store([*cells, *controls], folder))
    row["resume ms"] = _each(count, lambda: _resume(cells, controls, folder))
    _plan(cells, folder.path)
    row["merge ms"] = _each(count, lambda: merge([folder.path], place / "whole"))
    row["report s"], row["report MB"] = None, None
    if count <= MOST_REPORTED:
        began = time.perf_counter()
        with without_collecting():  # as the command does
            page = make_page(read_runs([folder.path])).encode()
        row["report s"] = round(time.perf_counter() - began, 2)
        row["report MB"] = round(len(page) / 1e6, 2)
    row["peak MB"] = round(peak_memory() / 1e6)
    return row


def _each(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return round(1000 * (time.perf_counter() - began) / count, 2)


def _store(made: Sequence[StoredCell], folder: RunFolder) -> None:
    for stored in made:
        folder.write_cell(stored.cell.key or "", stored.settings, stored.cell, stored.victims)


def _resume(cells: Sequence[StoredCell], controls: Sequence[StoredCell], folder: RunFolder) -> None:
    found = [folder.read_cell(stored.cell.key or "", stored.settings) for stored in [*cells, *controls]]
    made = [stored for stored in found if stored is not None]
    document = document_of([stored.cell for stored in made], environment("cpu"))
    folder.write_results(document, [record for stored in made for record in stored.victims])


def _plan(cells: Sequence[StoredCell], place: Path) -> None:
    planned = [
        PlannedCell(key=stored.cell.key or "", shard=number % _SHARDS + 1) for number, stored in enumerate(cells)
    ]
    made_in = environment("cpu")
    for shard in range(1, _SHARDS + 1):
        write_plan(place, Plan(shard=shard, shards=_SHARDS, command=["evaluate"], cells=planned, environment=made_in))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the cost of a cell as a run grows.")
    parser.add_argument("cells", nargs="*", type=int, default=[100, 1000, 2000, 10_000], help="growing numbers")
    for row in bench_store(parser.parse_args().cells, find_data_root(None)):
        print("".join(f"{title:34} {value}\n" for title, value in row.items()), flush=True)
