"""Verdict, matrix, gallery and figures by themselves."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from harness.reports.html.gallery import gallery
from harness.reports.html.matrix import attack_matrices, strongest_matrices
from harness.reports.html.places import decided_places, shown_cells
from harness.reports.html.runs import read_runs
from harness.reports.html.svg import INK, inline
from harness.reports.html.utility import leakage, utility_chart
from harness.reports.html.verdict import verdict
from harness.reports.pictures import first_rows_box, last_row_boxes


def test_the_matrix_runs_from_the_client_to_the_server(grid: list[Path]) -> None:
    [matrix] = strongest_matrices(decided_places(read_runs(grid)))
    assert [name for name, _ in matrix.columns] == ["inside the client", "on the way", "at the server"]
    kinds = {defense: [entry.kind for entry in entries] for defense, _, entries in matrix.rows}
    assert kinds == {
        "none": ["leaks"] * 3, "fed_sdp": ["leaks", "leaks", "inconclusive"], "fed_cdp": ["resilient"] * 3,
    }  # fmt: skip


def test_the_strongest_attack_decides_and_each_stands_by_itself(
    tmp_path: Path, a_cell: Callable, a_run: Callable
) -> None:
    cells = [a_cell("fed_cdp", attack="dlg", verdict="resilient"), a_cell("fed_cdp", attack="cpl")]
    runs = read_runs([a_run(tmp_path, cells, pictures=False)])
    [matrix] = strongest_matrices(decided_places(runs))
    [entry] = matrix.rows[0][2]
    assert (entry.kind, entry.attack, entry.rate) == ("leaks", "cpl", "95% came back")
    assert [one.rows[0][2][0].kind for one in attack_matrices(shown_cells(runs))] == ["resilient", "leaks"]


def test_a_leak_by_the_lineup_alone_is_called_traces(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    places = decided_places(read_runs([a_run(tmp_path, [a_cell(confirmed=0)], pictures=False)]))
    assert strongest_matrices(places)[0].rows[0][2][0].rate == "traces, 95% accurate"


def test_what_was_not_tried_and_what_is_impossible_differ(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    impossible = {"verdict": "inconclusive", "not_applicable_reason": "needs a batch", "metrics": {}, "asr": {}}
    cells = [a_cell("none", 2), a_cell("fed_sdp", 0, **impossible)]
    [matrix] = strongest_matrices(decided_places(read_runs([a_run(tmp_path, cells, pictures=False)])))
    assert [[entry.kind for entry in entries] for *_, entries in matrix.rows] == [
        ["leaks", "untried"], ["untried", "impossible"],
    ]  # fmt: skip


@pytest.mark.parametrize(("victims", "told"), [(58, True), (59, False)])
def test_too_few_victims_for_any_resilience_are_told_of(
    tmp_path: Path, a_cell: Callable, a_run: Callable, victims: int, told: bool
) -> None:
    runs = read_runs([a_run(tmp_path, [a_cell("fed_cdp", victims=victims, verdict="inconclusive")], pictures=False)])
    notes = verdict(runs, decided_places(runs)).notes
    assert any("too few for that" in note for note in notes) == told


def test_surfaces_that_show_the_same_share_a_picture(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    cells = [a_cell("none", surface, observation_id="same") for surface in (2, 1, 0)] + [a_cell("fed_cdp")]
    runs = read_runs([a_run(tmp_path, cells)])
    made = gallery(decided_places(runs), shown_cells(runs))
    assert [picture.title for picture in made.pictures] == ["none against cpl", "fed_cdp against cpl"]
    assert len(made.anchors) == len(made.pairs) == 4
    assert "2 inside the client, 1 on the way and 0 at the server" in made.pictures[0].places


def test_the_gallery_keeps_to_its_budget_and_says_so(
    tmp_path: Path, a_cell: Callable, a_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.reports.html.gallery._MOST_PICTURES", 2)
    runs = read_runs([a_run(tmp_path, [a_cell(f"defense{number}") for number in range(5)])])
    made = gallery(decided_places(runs), shown_cells(runs))
    assert len(made.pictures) == 2 and len(made.pairs) == 5
    assert made.left_out[0].startswith("3 pictures")


@pytest.mark.parametrize("lines", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_grid_is_cut_between_its_rows(lines: int, rows: int) -> None:
    # As pictures are laid out: inches at 150 dots.
    height = round((0.6 + 0.19 * lines + rows * 1.13 - 0.08 + 0.2) * 150)
    left, top, right, bottom = first_rows_box(1400, height, 4)
    assert (left, right) == (0, 1400)
    first_row = (0.6 + 0.19 * lines) * 150
    title, labels = (0.18 + 0.19 * lines) * 150, first_row - 35
    assert title <= top < labels
    assert bottom == pytest.approx(first_row + min(rows, 4) * 1.13 * 150, abs=35)
    assert last_row_boxes(1400, height)[0][3] == pytest.approx(height - 30, abs=4)


def test_a_picture_smaller_than_a_tile_has_no_tiles() -> None:
    assert last_row_boxes(20, 20) is None


def test_the_worst_place_counts_for_a_trained_defense(grid: list[Path]) -> None:
    runs = read_runs(grid)
    places = decided_places(runs)
    assert leakage(runs[1], places) == "resilient"
    chart = utility_chart(runs, places)
    assert chart is not None and "fed_cdp: accuracy 81%, claimed epsilon 0.80, recomputed 2.50" in chart.picture


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_any_words_in_a_figure_stay_words(words: str) -> None:
    printable = "".join(mark if mark.isprintable() else "?" for mark in words)
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, printable, color=INK, parse_math=False)
    root = ElementTree.fromstring(str(inline(figure, "name", words if words.isprintable() else "", printable)))
    assert {element.tag for element in root.iter()} <= {"svg", "title", "desc", "g", "path", "text", "defs"}
    assert not any(key.startswith("on") or key == "style" for element in root.iter() for key in element.attrib)
    assert printable.strip() in "".join(root.itertext())


def test_a_figure_takes_the_ink_of_the_page() -> None:
    figure = Figure(figsize=(2, 1))
    figure.text(0.5, 0.5, "words", color=INK, parse_math=False)
    drawn = str(inline(figure, "name", "", ""))
    assert "currentColor" in drawn and INK not in drawn and "style=" not in drawn
