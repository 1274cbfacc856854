"""The ablation of BatchNorm's statistics: what it runs, and what it makes of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.attacks import ATTACKS
from harness.base.building import build
from harness.experiment import CellSettings
from harness.papers import TABLES, Request, batch_norm
from harness.papers.batch_norm import ARMS, federation


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A training run of which only the kept models' files are there."""
    monkeypatch.setattr(batch_norm.TrainedRuns, "curve", lambda *_, **__: {2: 0.4, 20: 0.61})
    kept = tmp_path / "model.pt"
    kept.write_bytes(b"weights")
    monkeypatch.setattr(batch_norm.TrainedRuns, "folder", lambda *_: tmp_path)
    monkeypatch.setattr(batch_norm, "kept_model", lambda *_: kept)
    return tmp_path


def table(root: Path, errors: dict[str, float], asked: list[CellSettings]) -> Any:
    def cell(settings: CellSettings) -> Any:
        asked.append(settings)
        plain = settings.attack_args.get("batch_norm") == 0.0
        error = errors["no prior" if plain else str(settings.batch_norm)]
        value = SimpleNamespace(mean=error, median=error)
        made = SimpleNamespace(
            metrics={"rmse": value, "psnr": value}, asr={"strict": SimpleNamespace(successes=1, n=16)},
            lineup=SimpleNamespace(p_value=error),
        )  # fmt: skip
        return SimpleNamespace(cell=made)

    request: Any = Request(SimpleNamespace(cell=cell, resume=False), root, quick=True)  # type: ignore[arg-type]
    return TABLES["batch-norm"](request)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({"sent": 0.01, "hidden": 0.02, "no prior": 0.3}, "agrees"),
        ({"sent": 0.1, "hidden": 0.2, "no prior": 0.3}, "differs"),
        ({"sent": 0.02, "hidden": 0.01, "no prior": 0.3}, "differs"),
        ({"sent": 0.02, "hidden": 0.03, "no prior": 0.01}, "differs"),
        ({"sent": 0.02, "hidden": 0.02, "no prior": 0.3}, "differs"),
    ],
)
def test_the_three_arms_differ_in_statistics_alone(trained: Path, errors: dict[str, float], expected: str) -> None:
    asked: list[CellSettings] = []
    made = table(trained, errors, asked)
    assert [row["verdict"] for row in made.rows] == [expected] * 2
    assert [row["accuracy"] for row in made.rows] == ["-", "61.0%"]
    assert len(asked) == 2 * len(ARMS) and {one.round for one in asked} == {0, 20}
    same = {one.model_dump_json(exclude={"attack_args", "batch_norm", "round"}) for one in asked}
    assert len(same) == 1 and {one.batch_norm for one in asked} == {"sent", "hidden"}
    attacks = [build(ATTACKS, one.attack, one.attack_args) for one in asked[:3]]
    assert [one.batch_norm for one in attacks] == [0.0, 0.1, 0.1] and len({one.tv for one in attacks}) == 1


def test_the_federation_fits_the_data_at_hand(tmp_path: Path) -> None:
    settings = federation("cifar10-sample", tmp_path)
    assert settings.examples is not None and settings.examples % settings.batch_size == 0
