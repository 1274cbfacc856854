"""Cells of clients with other optimizers: the truth explains what is read, and attacks bring it back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.attacks import reconstructing, run_attack
from harness.attacks.candidates import dummy_gradient
from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN, spacing
from harness.evaluation import Run
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings
from harness.results import RunFolder


def settings(optimizer: str, **values: object) -> CellSettings:
    usual = {"dataset": "digits", "model": "mlp", "tap": "T1.out", "victims": 4, "labels": "known"}
    return cell_settings(**usual | {"optimizer": optimizer} | values)


def off(scene: Scene, **changed: object) -> float:
    """How far what the truth gives is from what was read, relative to it."""
    seen = replace(scene.observation, **changed)  # pyright: ignore[reportArgumentType]
    made = dummy_gradient(seen, scene.truth.images, scene.truth.labels, apply_clipping=False).detach()
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


# Clients as loops make them, by their optimizer; all in three steps.
LOOPS: dict[str, dict[str, object]] = {
    "sgd:momentum=0.5,schedule=0.05/0.2/0.02": {}, "sgd:lr=0.2,fedprox=2": {}, "adam:fedprox=2,lr=0.001": {},
    "sgd:accumulate=2,accumulate_sum=true": {"batch_size": 2}, "sgd:lr=0.2": {"epochs": 3, "batch_size": 2},
    "sgd:momentum=0.9": {"batch_size": 2, "client_examples": 5}, "sgd:lr=0.1": {"model": "mlp+only(5)"},
}  # fmt: skip


@pytest.mark.parametrize("optimizer", LOOPS)
def test_the_truth_explains_what_loops_make(optimizer: str, tmp_path: Path) -> None:
    asked = settings(optimizer, **{"local_steps": 3, "update_model": "unroll"} | LOOPS[optimizer])
    assert off(Stage(tmp_path, 64).set(asked)) < 0.01


def test_half_precision_is_read_by_what_it_leaves_of_each_weight(tmp_path: Path) -> None:
    """The error of what is read of a coordinate is what its certainty says, and more where weights are large."""
    whole, half = (Stage(tmp_path, 64).set(settings("sgd", victims=8, sent_as=sent)) for sent in (None, "float16"))
    seen, start = half.observation, half.observation.weights
    assert (
        torch.equal(start, start.half().float()) and seen.certainty is not None and whole.observation.certainty is None
    )
    truth = dummy_gradient(replace(seen, reading=None), half.truth.images, half.truth.labels, apply_clipping=False)
    apart = (seen.target - truth).abs() * 0.05
    # Half of a spacing at most, of the larger of the weights before and after.
    after = (start - 0.05 * seen.target).abs().maximum(start.abs())
    spaced = torch.from_numpy(np.spacing(after.half().numpy())).float()
    assert (apart <= 0.51 * spaced + 1e-9).all() and (apart > 0.2 * spaced).any()
    product = seen.certainty * spaced
    usual = product.amax(1, keepdim=True)
    assert (product / usual)[spaced >= spaced.max() / 8].min() > 0.97 and product.max() < 1.2 * product.amax(1).min()
    torch.testing.assert_close((seen.certainty * seen.target).norm(dim=1), seen.target.norm(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_spacings_are_those_of_floats(dtype: torch.dtype) -> None:
    values = torch.logspace(-9, 3, 100).to(dtype)
    there = torch.from_numpy(np.spacing(values.numpy()))
    assert torch.equal(spacing(values.float(), dtype).to(dtype), there)


def test_passes_take_the_same_examples_in_another_order(tmp_path: Path) -> None:
    asked = settings("sgd", batch_size=4, epochs=3, client_examples=10, update_model="avg")
    assert (asked.local_steps, asked.step_sizes, asked.examples) == (9, (4, 4, 2) * 3, 36)
    chosen = Stage(tmp_path, 64).set(asked).truth.indices.reshape(4, 3, 12)
    passes = [[set(order.tolist()) for order in client] for client in chosen]
    assert all(len(first) == 10 and first == second == third for first, second, third in passes)
    assert not torch.equal(chosen[:, 0], chosen[:, 1]) and not torch.equal(chosen[:, 1], chosen[:, 2])
    # The last two fill four places by turns.
    assert torch.equal(chosen[..., 8:10], chosen[..., 10:])
    alone = settings("sgd", batch_size=4, epochs=3, client_examples=10, update_model="avg", victims=2)
    assert torch.equal(Stage(tmp_path, 64).set(alone).truth.indices, chosen[:2].flatten(1))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"optimizer": "sgd:schedule=0.1/0.2", "local_steps": 3}, "has 2 rates and there are 3 local_steps"),
        ({"epochs": 2, "local_steps": 3}, "2 epoch(s) over the same examples in batches of 1 are not 3 local_steps"),
        ({"epochs": 2, "client_examples": 5, "batch_size": 2, "local_steps": 4}, "over 5 examples in batches of 2 are"),
        ({"client_examples": 2, "batch_size": 4}, "batches of 4 from 2 examples"),
        ({"optimizer": "sgd:accumulate=3", "batch_size": 4}, "let accumulate divide the batch size"),
        ({"optimizer": "sgd:accumulate=2", "batch_size": 4, "client_examples": 6}, "leave accumulate out"),
        ({"sent_as": "float16", "defense": "secagg_ddp"}, "leave --sent-as out"),
        ({"sent_as": "float8"}, "'float16' or 'bfloat16'"),
    ],
)  # fmt: skip
def test_clients_that_cannot_be_are_told_in_one_line(values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as problem:
        settings(str(values.pop("optimizer", "sgd")), **{"update_model": "avg"} | values)
    assert said in str(problem.value) and "\n" not in str(problem.value)


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
