"""The table of what a secure sum hides: what it runs, and what it makes of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.evaluation import Run
from harness.experiment import CellSettings
from harness.papers import TABLES, Request
from harness.results import RunFolder


@pytest.mark.slow
def test_both_guarantees_stand_beside_what_leaks(tmp_path: Path) -> None:
    asked: list[CellSettings] = []

    class Watched(Run):
        def cell(self, settings: CellSettings, control: str | None = None) -> Any:
            # One iteration, and no controls: the settings and statements are what is tested.
            asked.append(settings)
            return super().cell(settings.model_copy(update={"attack_args": {"max_iterations": 1}}), "positive")

    run = Watched(tmp_path, RunFolder(tmp_path / "run"))
    table = TABLES["secagg-leakage"](Request(run, tmp_path, quick=True, victims=2))
    assert len(table.rows) == 3 and len(asked) == 9
    assert [settings.together for settings in asked] == [1, 1, 10] * 3
    strong, weak, none = table.rows
    # The paper prints 1 by the looser conversion of Renyi divergences.
    assert 0.7 < float(strong["ε of the sum"]) < 1 < float(strong["ε of a message"])
    assert float(weak["ε of the sum"]) > 1000 and none["ε of the sum"] == none["ε of a message"] == "-"
    assert {row["verdict"] for row in table.rows} <= {"undecided", "differs"}
    assert "quick" in table.header[-1]


@pytest.mark.parametrize(
    ("verdict", "expected"), [("leaks", "differs"), ("resilient", "agrees"), ("inconclusive", "undecided")]
)
def test_a_leak_at_the_sum_is_told(tmp_path: Path, verdict: str, expected: str) -> None:
    made = SimpleNamespace(
        verdict=verdict, verdict_alone=verdict, outcomes=SimpleNamespace(success=1), victims=3, privacy=[], lineup=None,
        not_applicable_reason=None,
    )  # fmt: skip
    run = SimpleNamespace(cell=lambda settings: SimpleNamespace(cell=made))
    request: Any = Request(run, tmp_path, victims=3)  # type: ignore[arg-type]
    table = TABLES["secagg-leakage"](request)
    assert {row["verdict"] for row in table.rows} == {expected}
    assert len(table.rows) == 3 * 5  # attacks that can read sums
    assert table.rows[0]["surface 0"] == f"{verdict} (1/3)"
