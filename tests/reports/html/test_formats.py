"""Tables as Markdown, CSV, LaTeX and JSON: whole, and harmless whatever their entries say."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.reports.html import all_tables, make_page, read_runs
from harness.reports.html import table as formats
from harness.reports.html.site import make_site
from harness.reports.html.table import Head, Table, Value, condensed, folded
from harness.reports.table import print_results
from harness.results import Bound, Ceiling, CellResult, Control, Outcomes, Rate, ResultDocument, Statement


def table_of(*entries: str) -> Table:
    columns = tuple(Head(f"c{number}") for number in range(len(entries)))
    return Table("name", "A title", columns, (tuple(map(Value, entries)),))


@pytest.fixture(scope="module")
def tables(grid: list[Path]) -> list[Table]:
    return all_tables(read_runs(grid))


def test_there_are_tables_of_everything(tables: list[Table]) -> None:
    names = [table.name for table in tables]
    assert names == [
        "resilience", "paper-1", "paper-2", "cells", "training", "rounds", "privacy", "control-summary", "controls",
        "environment", "settings", "left-out",
    ]  # fmt: skip
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    rows = {table.name: len(table.rows) for table in tables}
    assert (rows["resilience"], rows["cells"], rows["rounds"]) == (9, 18, 3)


def test_the_papers_layout_has_defenses_side_by_side(tables: list[Table]) -> None:
    paper = tables[1]
    assert [column.title for column in paper.columns] == [
        "surface", "measure", "none sigma=6", "fed_sdp", "fed_cdp",
    ]  # fmt: skip
    first = [[value.shown for value in row] for row in paper.rows[:3]]
    assert first[0] == ["2 inside the client", "resilient", "N", "N", "Y"]
    assert first[1][2:] == ["95% [86.1-99]", "95% [86.1-99]", "0% [0-6]"]
    assert first[2] == ["2 inside the client", "distance", "0.0100", "0.0100", "0.6900"]


def test_markdown_has_a_line_per_row(tables: list[Table]) -> None:
    parts = formats.markdown(tables).split("\n## ")
    assert len(parts) == len(tables)
    for part, table in zip(parts, tables, strict=True):
        assert sum(line.startswith("| ") for line in part.splitlines()) == 1 + len(table.rows)


def test_json_holds_numbers_beside_words(tables: list[Table]) -> None:
    document = json.loads(formats.as_json(tables))
    [cells] = [table for table in document["tables"] if table["name"] == "cells"]
    place = cells["columns"].index("success [95%]")
    assert cells["rows"][0][place] == "95% [86.1-99]" and cells["values"][0][place] == 0.95


def test_latex_is_balanced(tables: list[Table]) -> None:
    made = formats.latex(tables)
    assert made.count(r"\begin{tabular}") == made.count(r"\end{tabular}") == len(tables)
    assert made.count(r"\toprule") == len(tables)


def test_equal_rows_and_columns_are_said_once() -> None:
    def row(*entries: str) -> tuple[Value, ...]:
        return tuple(map(Value, entries))

    columns = tuple(map(Head, ("tier", "surface", "attack", "rate", "seconds")))
    rows = row("a", "2", "cpl", "0%", "1.5"), row("a", "1", "cpl", "0%", "2.5"), row("a", "1", "map", "5%", "3.5")
    made = folded(Table("cells", "Cells", columns, rows, "A note."), "surface", ["seconds"])
    assert [[value.shown for value in one] for one in made.rows] == [
        ["a", "2, 1", "cpl", "0%"],
        ["a", "1", "map", "5%"],
    ]
    short = condensed(made)
    assert [column.title for column in short.columns] == ["surface", "attack", "rate"]
    assert short.note == "A note. In all rows tier: a." and len(short.rows) == 2
    alone = Table("cells", "Cells", columns, rows[:1])
    assert condensed(alone) == alone and folded(alone, "no such column") == alone


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40))
def test_no_entry_breaks_out_of_latex(entry: str) -> None:
    [line] = [line for line in formats.latex([table_of(entry)]).splitlines() if line.endswith(r"\\")][1:]
    body = line.removesuffix(r" \\")
    ours = (r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|textquotedbl|ldots)\{\}"
            r"|\\[{}$&%#_]|\$\\(times|checkmark|cdot)\$")  # fmt: skip
    assert not set(re.sub(ours, "", body)) & set("\\{}$&%#_^~")


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40))
def test_no_entry_adds_a_cell_or_a_tag_to_markdown(entry: str) -> None:
    line = formats.markdown([table_of(entry, "end")]).splitlines()[4]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    assert "<" not in line and "`" not in line.replace("\\`", "")


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40))
def test_csv_gives_entries_back_and_no_formula(entry: str) -> None:
    [_, [back, _]] = list(csv.reader(io.StringIO(formats.comma_separated(table_of(entry, "x")))))
    assert back.removeprefix("'") == ("" if entry in formats.NOTHING else entry.removeprefix("'"))
    assert not back.startswith(("=", "+", "@")) and (not back.startswith("-") or back[1:].strip("%.").isascii())


@pytest.mark.parametrize("entry", ["=1+1", "+cmd", "@SUM(A1)", "-2+3+cmd|' /C calc'!A0"])
def test_a_formula_is_quoted(entry: str) -> None:
    assert formats.comma_separated(table_of(entry)).splitlines()[1].lstrip('"').startswith("'")


def test_numbers_stay_numbers() -> None:
    assert formats.comma_separated(table_of("-1.5", "12%")).splitlines()[1] == "-1.5,12%"
    gains = formats.comma_separated(table_of("+0.25 [-0.10, +0.60]", "-0.50 [-0.75, -0.25]")).splitlines()[1]
    assert gains == "0.25,-0.1,0.6,-0.5,-0.75,-0.25"


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (Value("12.5% [5.6-23.2]", 0.1251), "0.1251,0.056,0.232"), (Value("<0.001", 0.0001), "0.0001"),
        (Value("n/a"), '""'), (Value("T1.out", -1.0), "T1.out"), (Value("0, 1, 2", 0.0), '"0, 1, 2"'),
    ],
)  # fmt: skip
def test_a_column_of_numbers_has_numbers_in_csv(value: Value, entry: str) -> None:
    table = Table("t", "t", (Head("n", number=True),), ((value,),))
    assert formats.comma_separated(table).splitlines()[1] == entry


def traces(a_cell: Callable) -> CellResult:
    """A leak of which no image came back: ranks alone tell it."""
    none = Rate(rate=0.0, successes=0, n=60, ci95=(0.0, 0.06))
    return a_cell("fed_cdp", asr={"strict": none}, confirmed=0, outcomes=Outcomes(failure=60), verdict_reason="traces")


def test_no_leak_stands_beside_0_percent_without_its_p_value(
    tmp_path: Path, a_cell: Callable, a_run: Callable, a_card: Callable
) -> None:
    cell = traces(a_cell)
    runs = read_runs([a_run(tmp_path / name, [cell], pictures=False) for name in ("monday", "tuesday")])
    said = [
        (table.name, " ".join(value.shown for value in row))
        for table in all_tables(runs) for row in table.rows
        if any("LEAKS" in value.shown or value.shown.startswith("N") for value in row)
    ]  # fmt: skip
    assert {name for name, _ in said} == {"resilience", "trend", "paper-1", "cells"}
    assert all("<0.001" in row for _, row in said)
    board = make_site([a_card(cell)])["index.html"].decode()
    assert '<td class="leaks"' in board and "&lt;0.001" in board
    assert "traces (p &lt;0.001), 0% accurate" in make_page(runs[:1])
    printed = io.StringIO()
    print_results(
        ResultDocument(environment={}, cells=[cell], summary=runs[0].summary), Console(file=printed, width=200)
    )
    lines = [line for line in printed.getvalue().splitlines() if "0% [0-6]" in line]
    assert len(lines) == 2 and all("leaks" in line and "<0.001" in line for line in lines)


def test_where_tables_have_numbers_csv_has_them(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    event = Ceiling(event="first in its lineup", ceiling=0.25, says_little=True)
    cells = [a_cell("fed_cdp", bound=Bound(theorem="Gaussian", events=[event]))]
    runs = read_runs([a_run(tmp_path / name, cells, pictures=False) for name in ("monday", "tuesday")])
    found = {table.name: list(csv.reader(io.StringIO(formats.comma_separated(table)))) for table in all_tables(runs)}
    cell = dict(zip(*found["cells"][:2], strict=True))
    assert (cell["success"], cell["lineup p"], cell["first, by the theorem"]) == ("0.95", "0.0001", "0.25")
    assert float(cell["success from"]) < 0.95 < float(cell["success to"])
    assert [row[1:4] for row in found["trend"][2:]] == [
        ["success", "0.95", "0.95"], ["mean rank", "", ""], ["RMSE", "0.01", "0.01"],
    ]  # fmt: skip
    assert [row[2] for row in found["paper-1"][2:]] == ["0.95", "0.01", "19"]


def test_an_attack_that_was_not_possible_was_not_tried(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    refused = a_cell("fed_cdp", attack="map", key="b" * 20, not_applicable_reason="it needs a linear layer")
    runs = read_runs([a_run(tmp_path, [a_cell("fed_cdp", attack="cpl", key="a" * 20), refused], pictures=False)])
    [table] = [table for table in all_tables(runs) if table.name == "resilience"]
    place = [column.title for column in table.columns].index("attacks tried")
    assert [row[place].shown for row in table.rows] == ["cpl"]


def test_an_epsilon_that_promises_nothing_is_no_good_news(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    vain = Statement(view="server", claimed_epsilon=0.8, epsilon=8540.0, guarantee="client-LDP", notes="why")
    runs = read_runs([a_run(tmp_path, [a_cell("fed_cdp", privacy=[vain])], pictures=False)])
    [table] = [table for table in all_tables(runs) if table.name == "privacy"]
    row = {column.title: value for column, value in zip(table.columns, table.rows[0], strict=True)}
    assert row["recomputed epsilon"].shown == "8540.000, too large to promise anything"
    assert {row[name].kind for name in ("recomputed epsilon", "guarantee")} == {"nothing"}
    assert row["in plain words"].shown.startswith("Nothing that counts")
    assert ",8540," in formats.comma_separated(table)


def test_missing_columns_are_left_out(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    made = all_tables(read_runs([a_run(tmp_path, [a_cell()], pictures=False)]))
    [cells] = [table for table in made if table.name == "cells"]
    assert "LPIPS" not in [column.title for column in cells.columns]


def test_no_table_has_a_verdict_of_an_invalid_run(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    leaked = Control(name="swap", held=False, detail="lineup p = 1e-05")
    made = all_tables(read_runs([a_run(tmp_path, [a_cell(controls=[leaked])], pictures=False)]))
    shown = {table.name: " ".join(value.shown for row in table.rows for value in row) for table in made}
    assert all("! invalid" in shown[name] for name in ("resilience", "cells")) and " ! " in shown["paper-1"]
    assert not any("LEAKS" in words for words in shown.values())
