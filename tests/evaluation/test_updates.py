"""The adversary's model of an update is exact at the true data."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks.candidates import dummy_gradient
from harness.base.errors import UsageError
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings


def settled(**values: Any) -> tuple[CellSettings, Scene]:
    common = {"dataset": "digits", "victims": 3, "dtype": "float64"}
    settings = cell_settings(**common, **values)
    return settings, Stage(Path("no data root"), chunk=64).set(settings)


def mismatch(scene: Scene, apply_clipping: bool = False) -> float:
    """Squared distance of the true data's candidate from the target, relative to the target."""
    observation = scene.observation
    rows = observation.rows
    images = scene.truth.images.reshape(rows, -1, *scene.dataset.image_shape).double()
    labels = scene.truth.labels.reshape(rows, -1)
    candidate = dummy_gradient(observation, images, labels, apply_clipping).detach()
    return float((candidate - observation.target).square().sum() / observation.target.square().sum())


@pytest.mark.parametrize("tap", ["T1.out", "T0.in", "T0.post"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_unrolling_is_exact_and_averaging_is_not(tap: str, batch_size: int) -> None:
    shared: dict[str, Any] = {"tap": tap, "batch_size": batch_size, "local_steps": 2, "learning_rate": 0.5}
    unroll = mismatch(settled(**shared, update_model="unroll")[1])
    average = mismatch(settled(**shared, update_model="avg")[1])
    assert unroll < 1e-20
    assert average > 1e-6


@pytest.mark.parametrize("update_model", ["first", "avg", "unroll"])
@pytest.mark.parametrize("tap", ["T2.step", "T1.out", "T0.in"])
def test_one_step_is_exact_by_every_model(tap: str, update_model: str) -> None:
    assert mismatch(settled(tap=tap, batch_size=2, update_model=update_model)[1]) < 1e-20


def test_averaging_is_exact_for_a_vanishing_learning_rate() -> None:
    scene = settled(tap="T1.out", local_steps=2, update_model="avg", learning_rate=1e-7)[1]
    assert mismatch(scene) < 1e-10


CLIPPED: list[dict[str, Any]] = [
    {"defense": "fed_cdp", "tap": "T2.step"},
    {"defense": "fed_cdp", "tap": "T2.step", "clipping": "whole"},
    {"defense": "fed_cdp", "tap": "T1.out"},
    {"defense": "fed_acdp", "tap": "T0.in"},
    {"defense": "fed_cdp", "tap": "T1.out", "update_model": "unroll", "local_steps": 2},
    {"defense": "fed_sdp", "tap": "T1.out", "noise_at": "client"},
    {"defense": "fed_sdp", "tap": "T0.post", "clipping": "whole"},
    {"defense": "fed_sdp", "tap": "T0.post", "update_model": "unroll", "local_steps": 2},
]


@pytest.mark.parametrize("case", CLIPPED)
def test_known_clipping_is_exact_without_noise(case: dict[str, Any]) -> None:
    own = ("clipping", "noise_at")
    arguments = {"clip": 0.005 if case["defense"] == "fed_sdp" else 0.1, **{k: v for k, v in case.items() if k in own}}
    values = {name: value for name, value in case.items() if name not in own}
    scene = settled(**values, batch_size=2, noise_scale=0.0, defense_args=arguments)[1]
    assert scene.observation.clipping is not None
    assert mismatch(scene, apply_clipping=True) < 1e-20
    assert mismatch(scene, apply_clipping=False) > 1e-2


@pytest.mark.parametrize("update_model", ["first", "unroll"])
def test_what_clients_do_each_in_their_own_way_is_not_simulated(update_model: str) -> None:
    differ = {"mechanism": "gaussian", "mode": "paper", "learning_rates": "1,2"}
    scene = settled(
        defense="secagg_ddp", defense_args=differ, clients=3, clients_per_round=3, steps_per_round=1, tap="T1.out",
        update_model=update_model,
    )[1]  # fmt: skip
    with pytest.raises(UsageError, match="use --attack-arg scale=free"):
        mismatch(scene, apply_clipping=update_model == "first")


def test_noise_spoils_the_match() -> None:
    scene = settled(defense="fed_cdp", batch_size=2)[1]
    assert mismatch(scene, apply_clipping=True) > 0.1


@pytest.mark.parametrize("batch_size", [1, 3])
def test_known_labels_stay_with_their_local_step(batch_size: int) -> None:
    shared: dict[str, Any] = {"tap": "T1.out", "batch_size": batch_size, "labels": "known", "local_steps": 3}
    settings, scene = settled(**shared, update_model="unroll")
    given = settings.build_attack().labels(scene.observation)
    assert given is not None
    by_step = scene.truth.labels.reshape(3, 3, batch_size)
    assert torch.equal(given.reshape(3, 3, batch_size), by_step.sort(2).values)
    # The test means something only where sorting everything would have moved a label to another step.
    assert not torch.equal(given, given.sort(1).values)
    settings, scene = settled(**shared, update_model="avg")
    given = settings.build_attack().labels(scene.observation)
    assert given is not None
    assert torch.equal(given, scene.truth.labels.sort(1).values)


@pytest.mark.parametrize("model", ["lenet", "mlp"])
@pytest.mark.parametrize("defense", ["none", "fed_cdp", "fed_acdp"])
def test_equal_observations_have_equal_fingerprints(model: str, defense: str) -> None:
    shared: dict[str, Any] = {"model": model, "defense": defense, "dtype": "float32", "dataset": "digits", "victims": 3}
    stage = Stage(Path("no data root"), chunk=64)
    prints = {
        stage.set(cell_settings(**shared, tap=tap)).observation.fingerprint() for tap in ("T2.step", "T1.out", "T0.in")
    }
    assert len(prints) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": (1,)}, {"victims": 4}, {"batch_size": 2}, {"labels": "known"}, {"defense": "fed_cdp"},
        {"learning_rate": 0.1}, {"model": "mlp"}, {"tap": "T1.out", "update_model": "avg", "local_steps": 2},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_different_observations_have_different_fingerprints(change: dict[str, Any]) -> None:
    stage = Stage(Path("no data root"), chunk=64)
    shared: dict[str, Any] = {"dataset": "digits", "victims": 3}
    first, other = (stage.set(cell_settings(**{**shared, **more})) for more in ({}, change))
    assert first.observation.fingerprint() != other.observation.fingerprint()


@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_the_chunk_of_training_changes_no_bit(chunk: int) -> None:
    settings = cell_settings(dataset="digits", victims=3, defense="fed_cdp", tap="T1.out", batch_size=2)
    seen = Stage(Path("no data root"), chunk).set(settings).observation
    whole = Stage(Path("no data root"), 64).set(settings).observation
    assert torch.equal(seen.target, whole.target)
    assert seen.fingerprint() == whole.fingerprint()
