"""Numbers that an attack measures itself reach documents, tables and reports without another file."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, Attack
from harness.functions import evaluate
from harness.observation import Observation
from harness.reports import columns
from harness.reports.html.cell_tables import cell_table
from harness.reports.html.places import Shown
from harness.reports.html.run_data import RunData

SETTINGS = {
    "defense": "none", "attack_args": {"max_iterations": 2}, "dataset": "digits", "model": "mlp", "victims": 24,
}  # fmt: skip


def test_a_number_of_its_own_is_a_metric_and_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measures(self: Attack, observation: Observation, *made: Tensor) -> dict[str, Tensor]:
        return {"guesses": torch.full((observation.rows,), 3.0)}

    monkeypatch.setattr(ATTACKS["cpl"], "measures", measures)
    document = evaluate(**SETTINGS, out=tmp_path)
    (cell,) = [one for one in document.cells if one.role == "cell"]
    assert cell.metrics["guesses"].mean == 3 and columns.own_measures(document.cells) == ["guesses"]
    (own,) = columns.own_columns([cell])
    assert (own.title, own.show(cell)) == ("guesses", "3.000")
    table = cell_table([Shown(RunData("run", tmp_path), cell, "digits", "none", "")])
    assert "guesses" in [head.title for head in table.columns]


def test_a_name_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ATTACKS["cpl"], "measures", lambda *_: {"psnr": torch.zeros(24)})
    with pytest.raises(ValueError, match="metric already; give it another name"):
        evaluate(**SETTINGS, out=tmp_path)


def test_without_one_nothing_is_added() -> None:
    assert Attack.measures(ATTACKS["cpl"](), None, None, None) == {}  # type: ignore[arg-type]
