"""Texts that rounding blurs: behind the first step of Adam, and behind weights that moved little."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.span import Span
from harness.attacks.token_layers import end_of, is_noisier, rank_of, rows_by_error, token_layers
from harness.attacks.token_rows import used_rows
from harness.base.words import PAD, tokens_of
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings


def scene(optimizer: str, folder: Path, model: str = "text_transformer", **more: object) -> Scene:
    settings = cell_settings(
        dataset="notes", model=model, defense="none", attack="span", victims=3, tap="T1.out", optimizer=optimizer,
        update_model="avg", **more,
    )  # fmt: skip
    return Stage(folder, 8).set(settings)


def exact(made: Scene, target: Tensor | None = None) -> int:
    seen = made.observation if target is None else replace(made.observation, target=target)
    found, truth = run_attack(Span(), seen).images, made.truth.images
    return int((tokens_of(found).reshape(3, -1) == tokens_of(truth).reshape(3, -1)).all(1).sum())


@pytest.mark.parametrize(
    ("optimizer", "model"),
    [
        ("adam:lr=0.001", "text_transformer"),
        ("adamw:lr=0.00005,weight_decay=0.01", "text_transformer"),
        pytest.param("rmsprop:lr=0.001", "text_transformer", marks=pytest.mark.slow),
        ("adam:lr=0.001", "text_transformer+adapters(64)"),  # no table is trained that says what was used
        pytest.param("adam:lr=0.0001", "text_writer", marks=pytest.mark.slow),
    ],
)
def test_the_first_step_gives_texts_back(optimizer: str, model: str, tmp_path: Path) -> None:
    made = scene(optimizer, tmp_path, model)
    assert made.observation.certainty is not None and exact(made) == 3


def sent(made: Scene, rate: float, decay: float = 0.0) -> Tensor:
    """The gradients of what clients send: weights in single precision, so that the rows span everything."""
    seen = made.observation
    assert seen.reading is not None
    after = seen.weights - rate * (seen.model.gradient(seen.weights, made.truth.images, made.truth.labels)
                                   + decay * seen.weights)  # fmt: skip
    moved = seen.reading.gradient(after - seen.weights, seen.weights)
    layer = token_layers(seen.model, "span")[0]
    assert rank_of(seen.model.layout.split(moved)[layer.weight][0]) == layer.width
    return moved


@pytest.mark.parametrize(
    ("model", "rate", "decay"),
    [("text_transformer", 0.001, 0.0), ("text_transformer", 0.001, 0.1), ("text_writer", 0.01, 0.0)],
)
def test_weights_that_moved_little_give_texts_back(model: str, rate: float, decay: float, tmp_path: Path) -> None:
    made = scene(f"sgd:lr={rate},weight_decay={decay}", tmp_path, model)
    assert exact(made, sent(made, rate, decay)) == 3


@pytest.mark.parametrize(("rate", "decay"), [(0.001, 0.0), (0.01, 0.1)])
def test_weights_that_moved_little_give_several_texts_back(rate: float, decay: float, tmp_path: Path) -> None:
    """Of a network that reads no later words; under noise that nothing accounts for, none."""
    made = scene(f"sgd:lr={rate},weight_decay={decay}", tmp_path, "text_writer", batch_size=4)
    seen = replace(made.observation, target=sent(made, rate, decay)).take(torch.tensor([0]))
    found, truth = tokens_of(run_attack(Span(), seen).images)[0], tokens_of(made.truth.images)[0]
    assert sorted(found.tolist()) == sorted(truth.tolist())
    noise = torch.randn(seen.target.shape, generator=torch.Generator().manual_seed(0))
    blurred = replace(seen, target=seen.target + 0.01 * noise)
    assert (tokens_of(run_attack(Span(), blurred).images) == PAD).all()


def test_the_first_step_gives_two_texts_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network that reads no later words."""
    made = scene("adamw:lr=0.001", tmp_path, "text_writer", batch_size=2)
    seen = made.observation.take(torch.tensor([0]))
    found, truth = tokens_of(run_attack(Span(), seen).images)[0], tokens_of(made.truth.images)[0]
    assert sorted(found.tolist()) == sorted(truth.tolist())
    # Where places are not learned, and no row of a word moved.
    nothing = torch.zeros(seen.model.vocabulary or 0, dtype=torch.bool), None
    monkeypatch.setattr("harness.attacks.span.used_rows", lambda _: nothing)
    assert (tokens_of(run_attack(Span(), seen).images) == PAD).all()


def test_the_error_of_a_row_is_what_it_is_off_by(tmp_path: Path) -> None:
    """Against the gradient itself: rows over their errors are off by about 1, and their errors are far from alike."""
    made = scene("adam:lr=0.001", tmp_path)
    seen, model = made.observation.take(torch.tensor([0])), made.observation.model
    ((_, rows),) = rows_by_error(seen, token_layers(model, "span"))
    truth = model.gradient(seen.weights, made.truth.images[:1], made.truth.labels[:1])
    name = token_layers(model, "span")[0].weight
    read, right = (model.layout.split(one)[name][0].double() for one in (seen.target, truth))
    errors = read / rows
    off = ((read - right) / errors.nan_to_num(1.0)).square().mean(1).sqrt()
    assert 0.2 < float(off.median()) < 3
    assert float(errors.nan_to_num(0.0).amax()) > 100 * float(errors[errors > 0].amin())


def test_rows_that_did_not_move_were_not_used(tmp_path: Path) -> None:
    made = scene("adamw:lr=0.001,weight_decay=0.1", tmp_path)
    words, places = used_rows(made.observation.take(torch.tensor([1])))
    (text,) = tokens_of(made.truth.images[1:2]).reshape(1, -1)
    assert words is not None and places is not None
    assert set(words.nonzero()[:, 0].tolist()) - {PAD} == set(text.tolist()) - {PAD}
    assert int(places.sum()) == int((text != PAD).sum())


@pytest.mark.parametrize("optimizer", ["adamw:lr=0.001,weight_decay=0.1", "sgd:lr=0.001,weight_decay=0.1"])
def test_weight_decay_moves_no_adapter(optimizer: str, tmp_path: Path) -> None:
    """In the first step B is zero and A has no gradient, so fewer tokens than the rank are told, whatever decays."""
    made = scene(optimizer, tmp_path, "text_transformer+adapters(16)")
    empty = torch.empty(0)
    assert Span().measures(made.observation, empty, empty)["most_tokens"].tolist() == [15] * 3


def test_noise_ends_it(tmp_path: Path) -> None:
    made = scene("adam:lr=0.001", tmp_path)
    noise = torch.randn(made.observation.target.shape, generator=torch.Generator().manual_seed(0))
    assert exact(made, noise * made.observation.target.square().mean().sqrt()) == 0
    broken = replace(made.observation, target=made.observation.target * torch.nan)
    assert (tokens_of(run_attack(Span(), broken).images) == PAD).all()


def test_noise_of_the_known_deviation_is_no_more_than_that() -> None:
    made = torch.Generator().manual_seed(0)
    alone = [torch.randn(384, 96, generator=made, dtype=torch.float64) for _ in range(20)]
    assert not any(is_noisier(one) for one in alone)
    assert all(is_noisier(4 * one) for one in alone)


@pytest.mark.parametrize(
    ("scores", "length"),
    [([50, 48, 52, 47, 6, 7, 5, 6], 4), ([50, 48, 52, 47, 51, 49, 50, 48], 8), ([50, -3, 6, 7, 5], 1)],
)
def test_a_text_ends_where_scores_fall(scores: list[float], length: int) -> None:
    assert end_of(torch.tensor(scores, dtype=torch.float64)) == length
