"""The trend section: there when cells occur in several runs, absent else, and whatever a run is called stays text."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markupsafe import escape

from harness.reports.html import all_tables, make_page, read_runs
from harness.reports.html import table as formats
from harness.reports.html.trend import MOST_PANELS, MOST_RUNS, trend_section, trend_table
from harness.results import Lineup, Rate, Summary

SUCCESSES = (0, 6, 30)


def night(a_cell: Callable, successes: int, **changes: Any) -> Any:
    """A cell of 60 victims of whom so many came back."""
    share = successes / 60
    return a_cell(
        "fed_cdp", verdict="leaks" if share > 0.3 else "resilient", asr={"strict": Rate(
            rate=share, successes=successes, n=60, ci95=(max(0, share - 0.1), min(1, share + 0.1)))},
        lineup=Lineup(mean_rank=0.5 * (1 - share), p_value=0.5), metrics={"rmse": Summary(mean=1, median=share)},
        **changes,
    )  # fmt: skip


@pytest.fixture
def nights(tmp_path: Path, a_cell: Callable, a_run: Callable) -> list[Path]:
    """A cell that gets worse, one that stays, and one that only the last night has."""
    made = []
    for number, successes in enumerate(SUCCESSES):
        cells = [night(a_cell, successes), night(a_cell, 1, attack="dlg")]
        cells += [night(a_cell, 60, attack="idlg")] if number == 2 else []
        made.append(a_run(tmp_path / f"night-{number}", cells, pictures=False))
    return made


def rows_of(runs: Sequence[Path]) -> list[list[str]]:
    return [[value.shown for value in row] for row in trend_table(read_runs(runs)).rows]


def test_the_cell_that_moved_most_is_first_and_its_verdict_is_said_to_have_changed(nights: list[Path]) -> None:
    section = trend_section(read_runs(nights))
    assert section is not None
    assert section.sentence == (
        "Over 3 runs, 1 of 2 cells moved by 10 points or more in success or mean rank; 1 verdict changed between the "
        "first run and the last, 1 of them to LEAKS."
    )
    assert [(panel.title.split(" / ")[1], panel.change) for panel in section.panels] == [
        ("cpl", ("leaks", "resilient → ✖ LEAKS")), ("dlg", None),
    ]  # fmt: skip
    (drawn, *_) = (ElementTree.fromstring(str(panel.picture)) for panel in section.panels)
    spoken = next(element.text for element in drawn if element.tag == "desc")
    assert spoken == (
        "night-0: success 0%, mean rank 0.50; night-1: success 10%, mean rank 0.45; night-2: success 50%, mean rank "
        "0.25."
    )


def test_the_table_has_every_number_of_every_run(nights: list[Path]) -> None:
    table = trend_table(read_runs(nights))
    assert [column.title for column in table.columns] == [
        "cell", "number", "night-0", "night-1", "night-2", "moved",
    ]  # fmt: skip
    assert [row[1:] for row in rows_of(nights)[:4]] == [
        ["verdict", "✔ resilient", "✔ resilient", "✖ LEAKS", "changed"],
        ["success", "0%", "10%", "50%", "50 points"],
        ["mean rank", "0.50", "0.45", "0.25", "0.25"],
        ["RMSE", "0.000", "0.100", "0.500", "0.50"],
    ]
    assert len(rows_of(nights)) == 2 * 4


def test_a_night_that_lacks_a_cell_is_a_gap(nights: list[Path], a_cell: Callable, a_run: Callable) -> None:
    a_run(nights[1], [night(a_cell, 1, attack="dlg")], pictures=False)
    assert rows_of(nights)[1][1:] == ["success", "0%", "n/a", "50%", "50 points"]
    assert trend_section(read_runs(nights)) is not None


def test_a_night_whose_verdicts_must_not_be_used_has_none(nights: list[Path]) -> None:
    file = nights[2] / "results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"valid": False, "valid_reason": "swap leaked"}))
    assert rows_of(nights)[0][1:] == ["verdict", "✔ resilient", "✔ resilient", "! invalid", "same"]
    assert rows_of(nights[1:])[0][1:] == ["verdict", "✔ resilient", "! invalid", "n/a"]
    section = trend_section(read_runs(nights))
    assert section is not None and section.sentence.endswith("no verdict changed.")


@pytest.mark.parametrize("chosen", [slice(0, 1), slice(0, 0)])
def test_one_run_has_no_trend_whatever_stands_beside_it(
    nights: list[Path], tmp_path: Path, a_training: Callable, chosen: slice
) -> None:
    runs = read_runs([*nights[chosen], a_training(tmp_path / "training")])
    assert trend_section(runs) is None and "trend" not in [table.name for table in all_tables(runs)]
    assert 'id="trends"' not in make_page(runs) and 'href="#trends"' not in make_page(runs)


def test_runs_of_different_cells_have_no_trend(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    other = {"dataset": "digits"}, {"defense_args": {"sigma": 1.0}}, {"round": 3}, {"observations": 4}, {"tap": "T0.in"}
    runs = [a_run(tmp_path / str(n), [night(a_cell, 3, **changes)]) for n, changes in enumerate(({}, *other))]
    assert trend_section(read_runs(runs)) is None
    controls = [a_run(tmp_path / name, [night(a_cell, 3, role="control", control="positive")]) for name in "ab"]
    assert trend_section(read_runs(controls)) is None


@pytest.mark.slow
def test_many_nights_and_cells_are_cut_and_the_page_says_so(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    cells = [night(a_cell, 2, dataset=f"set-{number}") for number in range(MOST_PANELS + 1)]
    nights = [a_run(tmp_path / f"n{number:02d}", cells, pictures=False) for number in range(MOST_RUNS + 1)]
    runs = read_runs(nights)
    section, table = trend_section(runs), trend_table(runs)
    assert section is not None and len(section.panels) == MOST_PANELS and "13 cells" not in section.left_out
    assert "The figure has the 12 largest changes; the table has all 13." in make_page(runs)
    assert len(table.rows) == 4 * (MOST_PANELS + 1) and "The last 12 of 13 runs." in table.note
    assert [column.title for column in table.columns][2] == "n01"


NASTY = ["<script>alert(1)<", "$\\frac{", "a\x1b[31mb", "{{ 1234567*7 }}", "=cmd()", "x" * 120]


@pytest.mark.parametrize("name", [*NASTY[::2], *(pytest.param(name, marks=pytest.mark.slow) for name in NASTY[1::2])])
def test_hostile_runs_and_cells_stay_text(tmp_path: Path, a_cell: Callable, a_run: Callable, name: str) -> None:
    cell = night(a_cell, 30, dataset=name, attack=name, tap=name, defense_args={name: name})
    runs = read_runs([a_run(tmp_path / f"{number}{name}", [cell], pictures=False) for number in range(2)])
    page = make_page(runs)
    assert page.count("<script>") == 1 and "\x1b" not in page
    (section,) = re.findall(r'<section id="trends".*?</section>\s*</section>', page, re.DOTALL)
    assert not re.search(r"<(script|img|iframe)|\son\w+=|style=", section)
    for picture in re.findall(r"<svg.*?</svg>", section, re.DOTALL):
        ElementTree.fromstring(picture)
    shown = "".join(mark if mark.isprintable() else "?" for mark in name)[:50]
    assert str(escape(shown)) in section
    table = trend_table(runs)
    assert all(not line.startswith("=") for line in formats.comma_separated(table).splitlines())
    assert json.loads(formats.as_json([table]))["tables"][0]["name"] == "trend"


def test_numbers_from_elsewhere_stay_inside_the_panel(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    wild = [night(a_cell, 3), night(a_cell, 3)]
    wild[1] = wild[1].model_copy(update={"lineup": Lineup(mean_rank=1e9), "asr": {}, "metrics": {}})
    runs = read_runs([a_run(tmp_path / str(number), [cell], pictures=False) for number, cell in enumerate(wild)])
    section = trend_section(runs)
    assert section is not None and "1.0e+09" in str(section.panels[0].picture)
    assert rows_of([run.folder for run in runs])[1][1:] == ["success", "5%", "n/a", "n/a"]
