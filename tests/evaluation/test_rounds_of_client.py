"""Rounds of one client that draws other examples for each: pooled, told apart, and explained together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.attacks import Attack, Reconstruction, run_attack
from harness.attacks import pooled as module
from harness.attacks.pooled import pooled
from harness.base.errors import UsageError
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.rounds_seen import of_places, row_by_row
from harness.evaluation.run import Run
from harness.experiment import cell_settings
from harness.results import RunFolder
from harness.scoring.images import match
from harness.scoring.success import image_strict

HELD, BATCH, ROUNDS, CLIENTS = 5, 2, 6, 2
CELL = {"dataset": "digits", "model": "mlp2", "attack": "cpl", "victims": CLIENTS, "batch_size": BATCH,
        "client_examples": HELD, "same_data": "client", "rounds_seen": ROUNDS, "learning_rate": 0.2}  # fmt: skip


def _scene(tmp_path: Path, **given: object) -> Scene:
    return Stage(tmp_path, 32).set(cell_settings(**CELL | given))


def _back(scene: Scene, made: torch.Tensor) -> torch.Tensor:
    """Which of the examples (V, n) came back."""
    truth = scene.truth.images
    return image_strict(truth, made[torch.arange(len(made))[:, None], match(truth, made)])


def _looks(scene: Scene, lost: int) -> Reconstruction:
    """Rounds that come back but for one example of each client, of which every look makes something else."""
    assert scene.drawn is not None
    images = scene.of_rows.clone()
    wrong = (scene.drawn == lost).flatten(0, 1)
    images[wrong] = torch.rand(images[wrong].shape, generator=torch.Generator().manual_seed(3))
    labels = of_places(scene.truth, scene.drawn.flatten(1)).labels.reshape(wrong.shape)
    loss = torch.where(wrong.any(1), 1.0, 1e-9)
    one = torch.ones(len(loss))
    return Reconstruction(images, labels, loss, one, one.long(), one.long(), one, torch.zeros(len(loss)).long())


def test_rows_are_rounds_and_each_is_of_what_was_drawn(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    seen, drawn = scene.observation, scene.drawn
    assert drawn is not None and drawn.shape == (CLIENTS, ROUNDS, BATCH) and seen.client == (ROUNDS, HELD)
    assert all(len(row.unique()) == BATCH for row in drawn.flatten(0, 1))
    labels = of_places(scene.truth, drawn.flatten(1)).labels.reshape(-1, BATCH)
    made = seen.model.gradient(seen.weights, scene.of_rows, labels)
    assert torch.allclose(made, seen.target, atol=1e-6)
    # The model moves on, and more rounds begin with the same ones.
    assert not torch.equal(seen.weights[0], seen.weights[1])
    fewer = _scene(tmp_path, rounds_seen=2)
    rows = [0, 1, ROUNDS, ROUNDS + 1]
    assert torch.equal(fewer.observation.target, seen.target[rows])


def test_an_image_that_no_look_brings_back_comes_back_over_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = _scene(tmp_path)
    attack, lost = scene_attack(), 1
    looks = _looks(scene, lost)
    assert (scene.drawn == lost).any(1).any(1).all()
    before = looks.images.clone()
    made = pooled(attack, scene.observation, looks)
    assert torch.equal(looks.images, before)  # by which what rounds add is measured
    assert made.images.shape == scene.truth.images.shape
    drawn_at_all = torch.stack([(scene.drawn == one).flatten(1).any(1) for one in range(HELD)], 1)
    assert torch.equal(_back(scene, made.images), drawn_at_all)
    # Without it the pool has what looks brought back, and no more.
    monkeypatch.setattr(Attack, "position", lambda *_: None)
    plain = _back(scene, pooled(attack, scene.observation, looks).images)
    assert not plain[:, lost].any()
    assert torch.equal(plain.sum(1), drawn_at_all.sum(1) - 1)


def test_an_informed_attacker_averages_noise_over_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By images that rounds share they are nearer to the truth than by a choice among looks."""
    monkeypatch.setattr(module, "SWEEPS", 0)
    monkeypatch.setattr(module, "STEPS", 2)
    noisy = {"attack": "map", "prior": "auto", "defense": "fed_cdp", "defense_args": {"sigma": 0.02}}
    scene = _scene(tmp_path, **noisy)
    attack = cell_settings(**CELL | noisy).build_attack()
    assert isinstance(attack, Attack)
    looks = run_attack(attack, scene.observation)

    def error() -> float:
        made = pooled(attack, scene.observation, looks).images
        made = made[torch.arange(CLIENTS)[:, None], match(scene.truth.images, made)]
        return float((made.clamp(0, 1) - scene.truth.images).square().mean())

    together = error()
    monkeypatch.setattr(type(attack), "position", lambda *_: None)
    assert together < 0.9 * error()


def scene_attack() -> Attack:
    attack = cell_settings(**CELL).build_attack()
    assert isinstance(attack, Attack)
    return attack


def test_rounds_are_explained_by_the_images_that_they_used(tmp_path: Path) -> None:
    """From any other assignment, of the very images that the client holds."""
    scene = _scene(tmp_path)
    assert scene.drawn is not None
    start = torch.arange(BATCH).expand(CLIENTS, ROUNDS, BATCH)
    found = module._explained(scene.observation, scene.truth.images, scene.truth.labels, start)
    assert torch.equal(found.sort(2).values, scene.drawn.sort(2).values)


def test_of_a_single_round_nothing_is_made_up(tmp_path: Path) -> None:
    scene = _scene(tmp_path, rounds_seen=1)
    looks = run_attack(scene_attack(), scene.observation)
    made = pooled(scene_attack(), scene.observation, looks)
    assert made.images.shape[:2] == (CLIENTS, HELD)
    assert torch.equal(made.images[:, BATCH], made.images[:, HELD - 1])  # the mean of those that came back
    assert set(map(float, made.images[0, :BATCH].flatten())) == set(map(float, looks.images[0].flatten()))


def test_a_cell_counts_clients_and_says_what_rounds_add(tmp_path: Path) -> None:
    settings = cell_settings(**CELL | {"defense": "none"})
    cell = Run(tmp_path, RunFolder(tmp_path / "out")).cell(settings).cell
    assert cell.victims == CLIENTS and cell.asr["strict"].n == CLIENTS * HELD
    found = {name: cell.metrics[name].mean for name in ("best_round", "above_best_round", "round_by_itself")}
    rate = cell.asr["strict"].rate
    assert found["best_round"] == pytest.approx(BATCH / HELD) and rate is not None and rate > 0.75
    assert found["above_best_round"] == pytest.approx(rate - BATCH / HELD)
    assert cell.options == {"client_examples": HELD, "same_data": "client", "rounds_seen": ROUNDS}


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"client_examples": None}, "client_examples"), ({"client_examples": 1}, "lower batch_size"),
     ({"tap": "T2.clip"}, "whole batches"),
     ({"tap": "T1.out", "local_steps": 3, "update_model": "unroll"}, "raise client_examples"),
     ({"tap": "T0.agg"}, "of one client"), ({"rounds_seen": 200}, "lower rounds_seen"),
     ({"defense": "paper:top-k", "tap": "T1.out"}, "remembers earlier rounds"), ({"same_data": "other"}, "same_data")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        cell_settings(**CELL | changes)


def test_batches_of_one_are_several_examples_too(tmp_path: Path) -> None:
    """So that nothing is resilient without a test of membership, which is refused here."""
    strong = {"defense": "fed_cdp", "batch_size": 1, "rounds_seen": 2, "attack": "analytic"}
    assert Run(tmp_path, RunFolder(tmp_path / "out")).cell(cell_settings(**CELL | strong)).cell.hidden == HELD


def test_attacks_that_bring_no_images_back_are_refused(tmp_path: Path) -> None:
    settings = cell_settings(**CELL | {"attack": "identify", "prior": "auto"})
    cell = Run(tmp_path, RunFolder(tmp_path / "out")).cell(settings).cell
    assert "brings nothing back" in (cell.not_applicable_reason or "")


def test_networks_that_normalise_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="several rounds"):
        _scene(tmp_path, model="resnet8")


def test_noise_that_changes_from_round_to_round_is_refused(tmp_path: Path) -> None:
    scene = _scene(tmp_path, defense="fed_cdp", defense_args={"sigma": 0.1})
    one = scene.observation.take(torch.arange(2))
    assert one.noise is not None
    with pytest.raises(UsageError, match="noise changes from round to round"):
        row_by_row([one, replace(one, noise=one.noise.times(2.0))], HELD)
