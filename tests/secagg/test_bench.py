"""The benchmark counts every client's bytes, and an aggregation that aborts is a row, not the end."""

from harness.bench.measurements import bench_secagg, table


def test_a_row_per_number_of_clients_and_graph() -> None:
    rows = bench_secagg([4, 34, 36], length=1000, bits=32, dropped=0.1, most_complete=34)
    assert [(row["clients"], row["graph"]) for row in rows] == [
        (4, "complete"), (34, "complete"), (34, "k-regular"), (36, "k-regular"),
    ]  # fmt: skip
    assert all(row["outcome"] == "exact" for row in rows)
    assert all(row["client kB"] > row["kB unchecked"] and row["consent ms"] > 0 for row in rows)
    assert rows[1]["client kB"] > rows[2]["client kB"] > 4.0
    assert len(table(rows).splitlines()) == 5 and len({len(line) for line in table(rows).splitlines()}) == 1


def test_an_abort_is_a_row() -> None:
    (row,) = bench_secagg([40], length=10, bits=32, dropped=0.49, most_complete=10)
    assert row["outcome"] == "aborted" and row["chance to abort"] > 0.5
    assert "aborted" in table([row])
