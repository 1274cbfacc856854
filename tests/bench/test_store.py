"""The bench of the store: a row per number of cells, all of them measured on a folder that is as a run leaves it."""

import json
from pathlib import Path

import pytest

from harness.bench.store import bench_store
from harness.cli import run


def test_a_row_per_number_of_cells(tmp_path: Path) -> None:
    rows = list(bench_store([2, 5], tmp_path))
    assert [row["cells"] for row in rows] == [2, 5]
    assert all(row[name] > 0 for row in rows for name in ("store ms", "resume ms", "merge ms", "report s", "peak MB"))


@pytest.mark.parametrize("cells", ["0", "5,2", "1000000"])
def test_numbers_that_cannot_be_measured(cells: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "store", "--cells", cells]) == 2
    assert "--cells must be growing numbers of 1 to 100,000" in capsys.readouterr().err


def test_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "store", "--cells", "1", "--json"]) == 0
    assert [row["cells"] for row in json.loads(capsys.readouterr().out)] == [1]
