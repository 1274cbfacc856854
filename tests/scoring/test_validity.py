"""One rule says whether a run may be used: negative controls that leaked, and at least one cell that was evaluated."""

from typing import Any

import pytest

from harness.results import CellResult, Control, Summary
from harness.scoring.verdict import fault_of

PLACE = {
    "dataset": "d",
    "model": "m",
    "defense": "fed_cdp",
    "attack": "cpl",
    "tap": "T2.step",
    "seeds": [0],
    "victims": 5,
}
HELD = Control(name="swap", held=True)
SWAPPED = Control(name="swap", held=False, detail="as told")
HIGH_NOISE = Control(name="noise_x100", held=False, cells=["ab"])
MOVED, STILL = ({"gradient_evaluations": Summary(mean=mean)} for mean in (20.0, 1.0))


def cell(*controls: Control, **values: Any) -> CellResult:
    return CellResult(**PLACE | values, controls=list(controls))


def high_noise(metrics: dict[str, Summary]) -> CellResult:
    return cell(HELD, role="control", control="noise_x100", key="ab", metrics=metrics)


IMPOSSIBLE = cell(not_applicable_reason="no such tap")


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ([cell(HELD, Control(name="positive", held=False))], None),
        ([cell(SWAPPED)], "negative control swap failed for cpl against fed_cdp at T2.step (as told)"),
        ([cell(HELD), cell(SWAPPED, role="control", control="positive", key="cd")], "negative control swap failed"),
        ([cell(HIGH_NOISE), high_noise(MOVED)], "negative control noise_x100 failed"),
        ([cell(HIGH_NOISE), high_noise(STILL)], None),
        ([cell(HIGH_NOISE)], "negative control noise_x100 failed"),
        ([IMPOSSIBLE, cell(HELD)], None),
        ([IMPOSSIBLE, high_noise(MOVED)], "no cell could be evaluated: no such tap"),
        ([], None),
    ],
)
def test_what_makes_a_run_unusable(cells: list[CellResult], fault: str | None) -> None:
    found = fault_of(cells)
    assert found == fault if fault is None else found is not None and found.startswith(fault)
