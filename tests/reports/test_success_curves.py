"""Curves of the success rate: drawn where there are several points, and a line for each thing that differs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from harness.reports.success_curves import LOOKS, ROUNDS, SEEN, Axis, _apart, _draw_limits, _panels, save_success_curves
from harness.results import Bound, Ceiling, CellResult, Rate


def a_cell(looks: int, **changes: Any) -> CellResult:
    facts: dict[str, Any] = {
        "dataset": "digits", "model": "mlp", "defense": "fed_cdp", "defense_args": {"sigma": 5.0}, "attack": "cpl",
        "surface": 2, "tap": "T2.step", "seeds": [0], "victims": 64, "observations": looks, "verdict": "leaks",
        "asr": {"strict": Rate(rate=0.5, successes=32, n=64, ci95=(0.37, 0.63))}, "observation_id": f"id{looks}",
    }  # fmt: skip
    return CellResult(**(facts | changes))


def curve(**changes: Any) -> list[CellResult]:
    return [a_cell(looks, **changes) for looks in (1, 4)]


def course(**changes: Any) -> list[CellResult]:
    return [a_cell(1, round=number, observation_id=f"round{number}", **changes) for number in (0, 10, 20)]


@pytest.mark.parametrize(("axis", "cells"), [(LOOKS, curve), (ROUNDS, course)])
def test_a_picture_is_drawn(tmp_path: Path, axis: Axis, cells: Callable[..., list[CellResult]]) -> None:
    hostile = cells(defense="$\\frac{", attack="\x1b[2J", surface=None, tap="T0.post")
    none = cells(defense="none", asr={"strict": Rate(reason="no victims")}, verdict="resilient")
    assert save_success_curves(tmp_path / "deep" / "curves.png", [*cells(), *hostile, *none], axis)
    with Image.open(tmp_path / "deep" / "curves.png") as picture:
        assert picture.size == (1425, 510)


@pytest.mark.parametrize(
    "cells",
    [[], [a_cell(4)], [a_cell(1), a_cell(4, asr={}, not_applicable_reason="no such tap")],
     curve(role="control", control="positive"), [a_cell(1), a_cell(4, attack="dlg")]],
)  # fmt: skip
def test_nothing_is_drawn_of_single_points(tmp_path: Path, cells: list[CellResult]) -> None:
    for axis in (LOOKS, ROUNDS):
        assert not save_success_curves(tmp_path / "curves.png", cells, axis)
    assert not (tmp_path / "curves.png").exists()


def test_a_line_for_each_attack_and_one_for_places_that_show_the_same() -> None:
    same = curve(surface=0, tap="T0.in")
    other = curve(surface=1, tap="T1.out", observation_id="other")
    (lines,) = _panels([*curve(), *same, *other, *curve(attack="dlg")], LOOKS).values()
    assert list(lines) == [
        ("fed_cdp sigma=5", "cpl", "surface 0 and surface 2"),
        ("fed_cdp sigma=5", "cpl", "surface 1"),
        ("fed_cdp sigma=5", "dlg", "surface 2"),
    ]
    assert len(_panels([*curve(), *curve(batch_size=2)], LOOKS)) == 2


def test_the_course_of_training_is_a_line_over_rounds_and_looks_are_told_apart() -> None:
    both = [*course(), *curve(round=10)]
    assert {title.rpartition(" | ")[2]: [list(line) for line in lines.values()] for title, lines in _panels(
        both, ROUNDS).items()} == {"seed 0": [[0, 10, 20]]}  # fmt: skip
    assert {title.rpartition(" | ")[2]: [list(line) for line in lines.values()] for title, lines in _panels(
        both, LOOKS).items()} == {"round 10": [[1, 4]]}  # fmt: skip


def test_lines_stand_beside_each_other_around_their_points() -> None:
    assert _apart([0, 50], 0, [0, 50, 100], ROUNDS) == [0, 50]
    assert _apart([0, 50], -1, [0, 50, 100], ROUNDS) == pytest.approx([-0.8, 49.2])
    assert _apart([1, 4], 1, [1, 4], LOOKS) == pytest.approx([1.06, 4.24])


def over_rounds() -> list[CellResult]:
    """Of 1, 4 and 16 rounds, each with a theorem for a first place."""
    found = []
    for rounds, ceiling in ((1, 0.1), (4, 0.4), (16, 1.0)):
        first = Ceiling(event="first in its lineup", measured=Rate(rate=0.1, successes=6, n=64), ceiling=ceiling)
        options = {"rounds_seen": rounds} if rounds > 1 else {}
        found.append(
            a_cell(1, options=options, bound=Bound(theorem="noise", events=[first]), observation_id=f"{rounds}")
        )
    return found


def test_rounds_seen_are_a_line_with_the_limit_of_theorems_beside_it(tmp_path: Path) -> None:
    (lines,) = _panels(over_rounds(), SEEN).values()
    assert [list(line) for line in lines.values()] == [[1, 4, 16]]
    assert all("rounds seen" not in title for title in _panels(over_rounds(), SEEN))
    panel = Figure().add_subplot()
    _draw_limits(panel, {**lines, ("again", "cpl", "surface 1"): next(iter(lines.values()))}, SEEN)
    (limit,) = panel.get_lines()
    assert list(limit.get_xdata()) == [1, 4, 16] and list(limit.get_ydata()) == pytest.approx([10, 40, 100])
    assert save_success_curves(tmp_path / "rounds_seen.png", over_rounds(), SEEN)
    # Along other axes these cells are different settings.
    assert not _panels(over_rounds(), LOOKS) and not _panels(over_rounds(), ROUNDS)
