"""Cells of clients with other optimizers: the truth explains what is read, and attacks bring it back."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.attacks import reconstructing, run_attack
from harness.attacks.candidates import dummy_gradient
from harness.base.errors import UsageError
from harness.evaluation import Run
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings
from harness.local_optimizer import PLAIN
from harness.results import RunFolder


def settings(optimizer: str, **values: object) -> CellSettings:
    usual = {"dataset": "digits", "model": "mlp", "tap": "T1.out", "victims": 4, "labels": "known"}
    return cell_settings(**usual | {"optimizer": optimizer} | values)


def off(scene: Scene, **changed: object) -> float:
    """How far what the truth gives is from what was read, relative to it."""
    seen = replace(scene.observation, **changed)  # pyright: ignore[reportArgumentType]
    made = dummy_gradient(seen, scene.truth.images, scene.truth.labels, apply_clipping=False)
    weights = 1.0 if seen.certainty is None else seen.certainty
    return float(((made - seen.target) * weights).norm() / (seen.target * weights).norm())


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "optimizer",
    ["sgd:momentum=0.9", "sgd:momentum=0.5,nesterov=true,weight_decay=0.1", "sgd:clip_grad_norm=0.1", "adam:lr=0.001",
     "adamw:lr=0.001,weight_decay=0.1", "rmsprop:lr=0.001"],
)  # fmt: skip
def test_the_truth_explains_what_is_read(optimizer: str, steps: int, tmp_path: Path) -> None:
    model = "unroll" if steps > 1 else "first"
    scene = Stage(tmp_path, 64).set(settings(optimizer, local_steps=steps, update_model=model))
    # Of a single adaptive step rounding hides a part of what is read.
    assert off(scene) < (0.01 if scene.observation.certainty is None else 0.25)
    # Played as plain SGD it does not, wherever the two differ.
    if steps > 1 or (scene.observation.reading and scene.observation.reading.shares is None):
        assert off(scene, optimizer=PLAIN, reading=None, certainty=None) > 0.05


def test_on_the_way_of_the_update_gradients_are_nearer_than_at_its_start(tmp_path: Path) -> None:
    scene = Stage(tmp_path, 64).set(settings("sgd:momentum=0.9", local_steps=4, update_model="unroll"))
    start, way, own = (off(scene, update_model=model) for model in ("avg", "path", "unroll"))
    assert own < 0.01 < way < start


@pytest.mark.parametrize(
    ("optimizer", "attack", "steps"), [("sgd:lr=0.01,momentum=0.9", "cpl", 2), ("adam:lr=0.001", "analytic", 1)]
)
def test_updates_leak(optimizer: str, attack: str, steps: int, tmp_path: Path) -> None:
    asked = settings(optimizer, attack=attack, local_steps=steps, update_model="avg" if steps > 1 else "first")
    found = Run(tmp_path, RunFolder(tmp_path)).cell(asked).cell.asr["strict"].rate
    assert found is not None and found >= 0.5


def test_noise_on_adaptive_steps_is_of_no_known_law(tmp_path: Path) -> None:
    values = {"defense": "fed_cdp", "tap": "T1.out"}
    noise = Stage(tmp_path, 64).set(settings("adam:lr=0.001", **values)).observation.noise
    assert noise and noise.deviation is None and noise.law == "unknown" and noise.unread
    plain, heavy = (
        Stage(tmp_path, 64).set(settings(name, local_steps=3, update_model="avg", **values)).observation.noise
        for name in ("sgd", "sgd:momentum=0.9")
    )
    # Steps that weigh more bring more noise with them: sqrt(sum of squares) / sum of the weights.
    shares = torch.tensor([1 - 0.9**3, 1 - 0.9**2, 1 - 0.9])
    ratio = float(shares.square().sum().sqrt() / shares.sum()) * 3**0.5
    assert plain and heavy and heavy.deviation == pytest.approx(float(plain.deviation or 0) * ratio)


def test_closed_forms_refuse_what_is_no_sum_of_gradients(tmp_path: Path) -> None:
    asked = settings("adam:lr=0.001", attack="analytic", defense="fed_sdp", defense_args={"noise_at": "client"})
    seen = Stage(tmp_path, 64).set(asked).observation
    with pytest.raises(UsageError, match="is no sum of gradients"):
        run_attack(reconstructing(asked.build_attack()), seen)


def test_a_rate_beside_another_is_told() -> None:
    assert settings("adam:lr=0.001").learning_rate == 0.001
    with pytest.raises(UsageError, match="give one"):
        settings("adam:lr=0.001", learning_rate=0.1)
