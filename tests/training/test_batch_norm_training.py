"""Federated training of BatchNorm: clients normalise batches as a whole, FedAvg averages their running statistics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.base.errors import UsageError
from harness.models import build_module
from harness.training import TrainFolder, Training, TrainOptions, train, train_settings
from harness.training.loop import accuracy_of
from harness.training.rounds import sample_clients

TINY: dict[str, Any] = {
    "dataset": "digits", "model": "resnet8", "clients": 6, "clients_per_round": 3, "rounds": 2, "local_steps": 2,
    "batch_size": 4, "split": "iid", "learning_rate": 0.1,
}  # fmt: skip


def plain_module(training: Training) -> nn.Module:
    """As anybody trains it: running statistics move."""
    module = build_module("resnet8", training.train.image_shape, 10, seed=0)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats = True
    return module


def test_it_is_federated_averaging_of_weights_and_running_statistics(
    tmp_path: Path, train_plainly: Callable[..., None]
) -> None:
    settings = train_settings(**TINY)
    training = Training(settings, tmp_path)
    module, state = plain_module(training), training.model.state(training.weights)
    for round_index in range(2):
        state = {name: value.clone() for name, value in state.items()}
        made = []
        for client in sample_clients(settings, round_index):
            module.load_state_dict(state)
            module.train()
            optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
            train_plainly(training, round_index, client, module, optimizer)
            made.append({name: value.clone() for name, value in module.state_dict().items()})
        state = {name: torch.stack([one[name].double() for one in made]).mean(0) for name in state}
        training.play_round(round_index, 2)
    ours = training.model.state(training.weights)
    for name, value in state.items():
        torch.testing.assert_close(ours[name].double(), value, rtol=1e-3, atol=1e-4)
    module.load_state_dict(state)
    logits = module.eval()(training.test.images)
    right = float((logits.argmax(1) == training.test.labels).double().mean())
    assert accuracy_of(training.model, training.weights, training.test)[0] == pytest.approx(right, abs=0.01)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_sampling": "poisson"}, r"Poisson batches differ in size.*resnet8\+group_norm"),
    ({"defense": "fed_cdp"}, r"single examples.*resnet8\+group_norm"),
    ({"defense": "fed_sdp", "target_epsilon": 3.0}, "no valid epsilon to stop at: running statistics of BatchNorm"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(train_settings(**TINY | changes), tmp_path, TrainFolder(tmp_path / "run"), TrainOptions())


def test_no_epsilon_covers_what_travels_beside_a_noisy_update(tmp_path: Path) -> None:
    settings = train_settings(**TINY | {"defense": "fed_sdp", "rounds": 1})
    document = train(settings, tmp_path, TrainFolder(tmp_path / "run"), TrainOptions())
    assert document.privacy and all(one.guarantee == "none" for one in document.privacy)
    assert any("running statistics" in one.notes for one in document.privacy)
    assert document.rounds[0].gradient_norm is None and document.rounds[0].update_norm > 0
