"""The costs of the store: a row per number of cells, all of them measured on a folder that is as a run leaves it."""

from pathlib import Path

import pytest

from store_costs import bench_store


@pytest.mark.slow
def test_a_row_per_number_of_cells(tmp_path: Path) -> None:
    rows = list(bench_store([2, 5], tmp_path))
    assert [row["cells"] for row in rows] == [2, 5]
    assert all(row[name] > 0 for row in rows for name in ("store ms", "resume ms", "merge ms", "report s", "peak MB"))
