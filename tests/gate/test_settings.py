"""What of a stored cell is compared with a baseline's: its settings, and nothing of what it was made with."""

from pathlib import Path

from harness.experiment import cell_settings
from harness.gate import read_baseline
from harness.gate.comparing import differences
from harness.gate.settings import effective
from harness.results import CellResult, StoredCell

COMMITTED = Path(__file__).parents[2] / "baselines" / "gate.json"


def test_versions_digests_and_whom_it_attacks_are_no_settings() -> None:
    settings = cell_settings(dataset="digits", model="mlp", defense="fed_cdp", attack_args={"max_iterations": 40})
    cell = CellResult(
        dataset="digits", model="mlp", defense="fed_cdp", defense_args=settings.build_defense().parameters(),
        attack="cpl", attack_args=settings.build_attack().parameters(), tap="T2.step", seeds=[0], victims=64,
    )  # fmt: skip
    made_with = {"harness": "9.9", "attack_source": "ab", "model_source": "cd", "control": None}
    stored = StoredCell(schema_version=1, settings=settings.identity() | made_with, cell=cell, victims=[])
    found = effective(stored)
    assert found["defense.sigma"] == 6.0 and found["batch_size"] == 1
    assert not found.keys() & {*made_with, "seeds", "victims", "device"}
    baseline = (one.settings for one in read_baseline(COMMITTED).cells if one.noise_scale == 1)
    (known,) = (one for one in baseline if one.get("defense.sigma") == 0.008)
    assert differences(known, found) == ["defense.clip 0.5 -> 4.0", "defense.sigma 0.008 -> 6.0"]
