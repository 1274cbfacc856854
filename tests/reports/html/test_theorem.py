"""The theorem on the page: a figure of both sides, and columns of the table of cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.reports.html.cell_tables import cell_table
from harness.reports.html.chart import lines
from harness.reports.html.figures import theorem_chart
from harness.reports.html.places import Shown, shown_cells
from harness.reports.html.runs import read_runs
from harness.results import Bound, Ceiling, CellResult, Rate

MEASURED = Rate(rate=0.25, successes=15, n=60, ci95=(0.147, 0.379))
THEOREM = Bound(
    theorem="Gaussian noise, mu = 0.4", mu=0.4,
    events=[
        Ceiling(event="first in its lineup", measured=MEASURED, kappa=0.005, ceiling=0.0167, p_value=1.0),
        Ceiling(event="strict image", measured=MEASURED, kappa=0.35, ceiling=0.507, p_value=1.0, says_little=True),
    ],
)  # fmt: skip


def without(reason: str) -> Bound:
    events = [event.model_copy(update={"ceiling": None, "p_value": None}) for event in THEOREM.events]
    return Bound(reason=reason, events=events)


def cells(make_cell: Callable[..., CellResult]) -> list[CellResult]:
    return [
        make_cell("fed_cdp", bound=THEOREM), make_cell("noise", bound=without("<b>no clipping</b>")), make_cell("old"),
    ]  # fmt: skip


@pytest.fixture
def shown(a_cell: Any, a_run: Any, tmp_path: Path) -> list[Shown]:
    return shown_cells(read_runs([a_run(tmp_path / "run", cells(a_cell))]))


def test_the_figure_draws_what_was_measured_what_is_blind_and_what_is_the_most(shown: list[Shown]) -> None:
    made = theorem_chart("name", "title", lines(shown))
    assert made is not None
    picture = str(made.picture)
    assert "fed_cdp" in picture and "noise" in picture and "old" not in picture
    assert "first in the lineup 25% [14.7-37.9], blind guess 0.5%, at most 1.7%" in picture
    assert "RMSE at most 0.1 25% [14.7-37.9], blind guess 35%, at most 50.7% (says little)" in picture
    assert "no bound exists: &lt;b&gt;no clipping&lt;/b&gt;" in picture
    # In the drawing itself: a word in each panel of the one row without a theorem.
    assert picture.count(">no bound exists</text>") == 2


def test_no_figure_of_documents_that_know_no_theorem(a_cell: Any, a_run: Any, tmp_path: Path) -> None:
    old = shown_cells(read_runs([a_run(tmp_path / "run", [a_cell("old")])]))
    assert theorem_chart("name", "title", lines(old)) is None
    titles = [column.title for column in cell_table(old).columns]
    assert not [title for title in titles if "theorem" in title or "blind" in title]


def test_the_table_of_cells_has_the_theorem(shown: list[Shown]) -> None:
    table = cell_table(shown)
    titles = [column.title for column in table.columns]
    first = titles.index("first in lineup [95%]")
    assert titles[first : first + 4] == [
        "first in lineup [95%]", "first, blindly", "first, by the theorem", "success, by the theorem",
    ]  # fmt: skip
    entries = [[value.shown for value in row[first : first + 4]] for row in table.rows]
    assert entries == [
        ["25% [14.7-37.9]", "0.5%", "at most 1.7%", "at most 50.7% (says little)"],
        ["25% [14.7-37.9]", "0.5%", *["no bound exists: <b>no clipping</b>"] * 2],
        ["n/a"] * 4,
    ]
