"""A printed table as CSV: numbers, and nothing where there is nothing."""

import io

import pandas

from harness.reports.html.page import printed
from harness.reports.html.table import Head, Table, Value

HEADS = ("attack", "success [95%]", "epsilon", "victims", "p", "note")
ROWS = (
    ("cpl", "12.5% [5.6-23.2]", "1,234.5", "64", "<0.001", "=1+1"),
    ("map", "–", "-", "8", "0.2", "–"),
)


def test_numbers_are_numbers_and_dashes_are_empty() -> None:
    table = Table("t", "T", tuple(map(Head, HEADS)), tuple(tuple(map(Value, row)) for row in ROWS))
    content, left_out = printed("harness x", ["a line", table], ".csv")
    found = pandas.read_csv(io.BytesIO(content), encoding="utf-8-sig")
    assert left_out == 0
    heads = ["attack", "success", "success from", "success to", "epsilon", "victims", "p", "note"]
    assert list(found) == heads
    assert found.iloc[0].tolist() == ["cpl", 0.125, 0.056, 0.232, 1234.5, 64, "<0.001", "'=1+1"]
    assert found.iloc[1][["success", "success from", "success to", "epsilon", "note"]].isna().all()
    assert all(found[name].dtype.kind in "fi" for name in heads[1:6])
