"""Verdict, matrix, gallery and figures by themselves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from harness.federation.taps import Tap
from harness.reports.html import make_page, training
from harness.reports.html.cell_tables import control_summary, control_table
from harness.reports.html.chart import INK, inline
from harness.reports.html.figures import gallery
from harness.reports.html.places import decided_places, shown_cells
from harness.reports.html.runs import read_runs
from harness.reports.html.training import leakage, utility_chart
from harness.reports.html.verdict import Promise, matrices, promise, verdict
from harness.reports.html.wording import where
from harness.reports.pictures import first_rows_box, last_row_boxes
from harness.results import CellResult, Control, Identified, Outcomes, Statement
from harness.results.record import OWN_CONTROL
from harness.scoring.strongest import IN_PART

IDLE = Control(name="positive", held=False, detail="the attack is idle")
IMPOSSIBLE = {"verdict": "inconclusive", "not_applicable_reason": "needs a batch", "metrics": {}, "asr": {},
              "controls": []}  # fmt: skip


def test_surfaces_of_which_the_same_is_true_are_one_row(grid: list[Path]) -> None:
    [matrix] = matrices(decided_places(read_runs(grid)))
    found = {row.defense: [(entry.kind, entry.where) for entry in row.entries] for row in matrix.rows}
    client, way, server = "inside the client (surface 2)", "on the way (surface 1)", "at the server (surface 0)"
    assert found == {
        "none": [("leaks", (client, way, server))],
        "fed_sdp": [("leaks", (client, way)), ("inconclusive", (server,))],
        "fed_cdp": [("resilient", (client, way, server))],
    }


def test_the_strongest_attack_decides_and_each_is_counted(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    told = Identified(rate=0.05, n=60, chance=0.01, p_value=0.4, beyond_chance=0.1)
    cells = [
        a_cell("fed_cdp", attack="dlg", verdict="resilient"), a_cell("fed_cdp", units="clipped to C=4"),
        a_cell("fed_cdp", attack="identify", tier="informed", identified=told, verdict="inconclusive", controls=[IDLE]),
        a_cell("fed_cdp", attack="analytic", **IMPOSSIBLE),
    ]  # fmt: skip
    [matrix] = matrices(decided_places(read_runs([a_run(tmp_path, cells, pictures=False)])))
    [row] = matrix.rows
    [entry] = row.entries
    assert (entry.kind, entry.rate, entry.interval) == ("leaks", "95% came back", "86.1–99")
    assert entry.tried == (("plain", "dlg 0%, cpl 95%"), ("informed", "identify tells 5%"), ("not run", "analytic"))
    assert row.units == "clipped to C=4"
    assert matrix.refused == ("analytic not run: needs a batch",)
    assert entry.controls == "2 of 3 controls held" and entry.failed == ("positive of identify: the attack is idle",)


def test_what_was_not_run_is_not_counted_and_what_ran_in_part_is_named(
    tmp_path: Path, a_cell: Callable, a_run: Callable
) -> None:
    own, swap = Control(name="positive", held=False, detail=f"{OWN_CONTROL}; fix"), Control(name="swap", held=True)
    late = {**IMPOSSIBLE, "not_applicable_reason": f"{IN_PART}: 5 of 5 captures with 17 iterations ran"}
    cells = [a_cell("none", verdict="inconclusive", controls=[own, swap]), a_cell("none", **late)]
    [matrix] = matrices(decided_places(read_runs([a_run(tmp_path, cells, pictures=False)])))
    [entry] = matrix.rows[0].entries
    assert entry.controls == "1 of 1 control held; 1 not run: without a defense this row is its own control"
    assert entry.tried[-1] == ("not whole", "cpl")
    assert matrix.refused == (f"cpl not whole: {IN_PART}: 5 of 5 captures with 17 iterations ran",)


@pytest.mark.parametrize(("seen", "said", "shown"), [
    ("lineup p = none", "1 of 1 control held; 1 could not be tested", "· not tested"),
    ("lineup p = 0.74", "2 of 2 controls held", "✔ held"),
])  # fmt: skip
def test_a_negative_control_that_could_not_fail_did_not_hold(
    seen: str, said: str, shown: str, tmp_path: Path, a_cell: Callable, a_run: Callable
) -> None:
    """As where no two victims share a class, whose truths could be swapped."""
    works = Control(name="positive", held=True, detail="the attack leaks undefended")
    swap = Control(name="swap", held=True, detail=seen)
    runs = read_runs([a_run(tmp_path, [a_cell("fed_cdp", controls=[works, swap])], pictures=False)])
    [matrix] = matrices(decided_places(runs))
    assert matrix.rows[0].entries[0].controls == said
    each = {row[1].shown: row[3].shown for row in control_table(runs).rows}
    assert each == {"positive": "✔ held", "swap": shown}
    summed = {row[0].shown: row[2].shown for row in control_summary(runs).rows}
    assert summed == {"positive": "✔ 1 of 1", "swap": "✔ 1 of 1" if shown == "✔ held" else "· not tested"}


def test_a_leak_by_the_lineup_alone_is_called_traces(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    places = decided_places(read_runs([a_run(tmp_path, [a_cell(confirmed=0)], pictures=False)]))
    assert matrices(places)[0].rows[0].entries[0].rate == "traces (p <0.001), 95% accurate"


def test_what_could_not_be_run_says_why(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    cells = [a_cell("none"), a_cell("fed_sdp", 0, **IMPOSSIBLE)]
    [matrix] = matrices(decided_places(read_runs([a_run(tmp_path, cells, pictures=False)])))
    said = [(entry.kind, entry.word, entry.said) for row in matrix.rows for entry in row.entries]
    assert said[1] == ("impossible", "not run", "needs a batch")


def stated(**facts: object) -> Statement:
    return Statement(**{"view": "server", "guarantee": "sample-DP", "notes": "", **facts})


@pytest.mark.parametrize(
    ("statements", "words", "detail"),
    [
        ([], "nothing promised", ""),
        ([stated(guarantee="none", claimed_epsilon=0.82)], "nothing promised", "claimed epsilon 0.82"),
        ([stated(epsilon=2.314, covers=True)], "epsilon 2.31", "sample-DP"),
        (
            [stated(epsilon=8540.0)], "nothing promised",
            "epsilon 8.54e+03, too large to promise anything; sample-DP",
        ),
        ([stated(epsilon=2.0), stated(epsilon=3.0, claimed_epsilon=1)], "epsilon 3", "sample-DP, claimed epsilon 1"),
        ([stated(epsilon=1.0, covers=False), stated(epsilon=4.0, covers=True)], "epsilon 4", "sample-DP"),
        (
            [stated(epsilon=1.0, covers=False)], "nothing promised",
            "epsilon 1 holds, but not of what is read here",
        ),
    ],
)  # fmt: skip
def test_the_promise_beside_a_verdict_covers_what_is_read_there(
    tmp_path: Path, a_cell: Callable, a_run: Callable, statements: list[Statement], words: str, detail: str
) -> None:
    [place] = decided_places(read_runs([a_run(tmp_path, [a_cell(privacy=statements)], pictures=False)]))
    assert promise(place) == Promise(words, detail)


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
    assert made.pictures[0].places == "inside the client, on the way and at the server"
    assert made.pictures[0].file == f"{tmp_path.name}/pictures/{cells[0].key}.png"


def test_the_gallery_keeps_to_its_budget_and_says_so(
    tmp_path: Path, a_cell: Callable, a_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.reports.html.figures._MOST_PICTURES", 2)
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


def test_a_trained_defense_is_judged_by_its_own_noise(
    tmp_path: Path, a_cell: Callable, a_run: Callable, a_training: Callable
) -> None:
    """Of several levels of noise, what leaks at one says nothing of another."""
    verdicts = {0.3: "leaks", 6.0: "resilient"}
    usual = {"clip": 4.0, "convention": "sum", "clipping": "layer", "noise_scale": 1.0}
    cells = [a_cell("fed_cdp", verdict=said, defense_args={"sigma": one, **usual}) for one, said in verdicts.items()]
    given = {"0.3": {"sigma": "0.3"}, "6": {}, "6.0": {"sigma": 6.0, "clip": 4}, "1": {"sigma": 1.0}}
    folders = [a_training(tmp_path / name, defense_args=own) for name, own in given.items()]
    runs = read_runs([a_run(tmp_path / "eval", cells), *folders])
    found = [leakage(run, decided_places(runs)) for run in runs[1:]]
    assert found == ["leaks", "resilient", "resilient", ""]
    chart = utility_chart(runs, decided_places(runs))
    assert chart is not None and "fed_cdp sigma=0.3: accuracy" in chart.picture


def test_an_epsilon_of_zero_is_drawn_as_the_smallest_and_not_as_none(
    grid: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta of .2 over few rounds is kept at an epsilon of 0, which promises most."""
    drawn = []
    monkeypatch.setattr(training, "inline", lambda figure, *told: drawn.append(figure.axes[0]) or inline(figure, *told))
    runs = read_runs(grid)
    made = runs[1].training
    assert made is not None
    promised = [replace(one, epsilon=0.0, claimed_epsilon=0.5) for one in made.privacy]
    runs[1].training = made.model_copy(update={"privacy": promised})
    assert utility_chart(runs, decided_places(runs)) is not None
    [panel] = drawn
    ticks = dict(zip((one.get_text() for one in panel.get_xticklabels()), panel.get_xticks(), strict=True))
    points = {float(line.get_xdata()[0]) for line in panel.lines if line.get_marker() == "o"}
    assert ticks["≤0.001"] in points and ticks["no epsilon"] not in points
    # The words do not lie on the claimed one, which is larger here.
    assert {0.5} == {float(one.xy[0]) for one in panel.texts if hasattr(one, "xy")}


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


def test_who_was_skipped_is_not_among_those_who_were_tried(tmp_path: Path, a_cell: Callable, a_run: Callable) -> None:
    cells = [
        a_cell(attack="patches", suite="auto-9"),
        a_cell(
            attack="cpl", suite="auto-9", verdict="inconclusive", asr={}, controls=[], confirmed=0,
            outcomes=Outcomes(not_applicable=60), not_applicable_reason="skipped: settled by patches",
        ),
    ]  # fmt: skip
    runs = read_runs([a_run(tmp_path, cells, pictures=False)])
    [matrix], shown = matrices(decided_places(runs)), shown_cells(runs)
    [entry] = matrix.rows[0].entries
    assert dict(entry.tried)["skipped"] == "cpl" and not matrix.refused and entry.kind == "leaks"
    assert [one.kind for one in shown] == ["leaks", "skipped"]
    assert verdict(runs, decided_places(runs)).tried.startswith("1 attack tried (patches)")
    page = make_page(runs)
    assert "skipped: settled by patches" in page and "--all-members" not in page


@pytest.mark.parametrize(
    ("tap", "surface", "said"),
    [(Tap.PUBLISHED, None, "in the published model (T0.agg)"), (Tap.RECEIVED, None, "at T0.post"),
     (Tap.ARRIVED, 0, "at the server")],
)  # fmt: skip
def test_every_place_has_words(tap: Tap, surface: int | None, said: str) -> None:
    assert where(cast(CellResult, SimpleNamespace(tap=str(tap), surface=surface))) == said
