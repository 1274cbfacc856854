"""The picture of repeated looks: drawn where there are several, and a line for each thing that differs."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from harness.reports.looks import _panels, save_looks
from harness.results import CellResult, RateSummary


def a_cell(looks: int, **changes: Any) -> CellResult:
    facts: dict[str, Any] = {
        "dataset": "digits", "model": "mlp", "defense": "fed_cdp", "defense_args": {"sigma": 6.0}, "attack": "cpl",
        "surface": 2, "tap": "T2.step", "seeds": [0], "victims": 64, "observations": looks, "verdict": "leaks",
        "asr": {"strict": RateSummary(rate=0.5, successes=32, n=64, ci95=(0.37, 0.63))}, "observation_id": f"id{looks}",
    }  # fmt: skip
    return CellResult(**(facts | changes))


def curve(**changes: Any) -> list[CellResult]:
    return [a_cell(looks, **changes) for looks in (1, 4)]


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    hostile = curve(defense="$\\frac{", attack="\x1b[2J", observation_id=None, surface=None, tap="T0.post")
    none = curve(defense="none", asr={"strict": RateSummary(reason="no victims")}, verdict="resilient")
    assert save_looks(tmp_path / "deep" / "looks.png", [*curve(), *hostile, *none])
    with Image.open(tmp_path / "deep" / "looks.png") as picture:
        assert picture.size == (1425, 510)


@pytest.mark.parametrize(
    "cells",
    [[], [a_cell(4)], [a_cell(1), a_cell(4, asr={}, not_applicable_reason="no such tap")],
     curve(role="control", control="positive"), [a_cell(1), a_cell(4, attack="dlg")]],
)  # fmt: skip
def test_nothing_is_drawn_of_single_points(tmp_path: Path, cells: list[CellResult]) -> None:
    assert not save_looks(tmp_path / "looks.png", cells)
    assert not (tmp_path / "looks.png").exists()


def test_a_line_for_each_attack_and_one_for_places_that_show_the_same() -> None:
    same = curve(surface=0, tap="T0.in")
    other = curve(surface=1, tap="T1.out", observation_id="other")
    (lines,) = _panels([*curve(), *same, *other, *curve(attack="dlg")]).values()
    assert list(lines) == [
        ("fed_cdp sigma=6", "cpl", "surface 0 and surface 2"),
        ("fed_cdp sigma=6", "cpl", "surface 1"),
        ("fed_cdp sigma=6", "dlg", "surface 2"),
    ]
    assert len(_panels([*curve(), *curve(batch_size=2)])) == 2
