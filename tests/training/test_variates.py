"""SCAFFOLD's identities (docs/defenses.md), and the heterogeneous data it is for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.training import TrainFolder, Training, TrainOptions, train, train_settings

TINY: dict[str, Any] = {
    "dataset": "logistic-5-5", "model": "logistic", "clients": 10, "clients_per_round": 4, "rounds": 3,
    "local_steps": 3, "batch_size": 8, "examples": 40, "split": "natural", "learning_rate": 0.5,
}  # fmt: skip


def training(tmp_path: Path, **changes: Any) -> Training:
    return Training(train_settings(**{**TINY, **changes}), tmp_path)


def test_the_servers_variate_is_the_mean_of_the_clients(tmp_path: Path) -> None:
    run = training(tmp_path, algorithm="scaffold")
    for round_index in range(4):
        run.play_round(round_index, 4)
        everybody = run.variates.of(list(range(10)))
        torch.testing.assert_close(run.variates.server, everybody.mean(0), rtol=1e-5, atol=1e-7)
    assert run.variates.server.abs().max() > 1e-3


def test_the_first_round_from_zero_variates_is_fedavg(tmp_path: Path) -> None:
    scaffold, fedavg = training(tmp_path, algorithm="scaffold"), training(tmp_path)
    for run in (scaffold, fedavg):
        run.play_round(0, 4)
    assert torch.equal(scaffold.weights, fedavg.weights)
    for run in (scaffold, fedavg):
        run.play_round(1, 4)
    assert not torch.allclose(scaffold.weights, fedavg.weights)


def test_a_clients_variate_is_what_the_update_says(tmp_path: Path) -> None:
    """Option II of the paper: c_i - c + (x - y) / (K eta), computed from the update alone."""
    run = training(tmp_path, algorithm="scaffold", clients_per_round=10, client_sampling="all")
    run.play_round(0, 10)
    before, server, weights = run.variates.of(list(range(10))), run.variates.server, run.weights.clone()
    run.play_round(1, 10)
    moved = (weights - run.weights) / (3 * 0.5)
    expected = (before - server).mean(0) + moved
    torch.testing.assert_close(run.variates.of(list(range(10))).mean(0), expected, rtol=1e-4, atol=1e-6)


def test_warming_up_moves_no_weights(tmp_path: Path) -> None:
    run = training(tmp_path, algorithm="scaffold-warm", rounds=20)
    start = run.weights.clone()
    assert run.settings.warm_up_rounds == 10
    for round_index in range(10):
        run.play_round(round_index, 4)
    assert torch.equal(run.weights, start) and run.variates.server.abs().max() > 0
    run.play_round(10, 4)
    assert not torch.equal(run.weights, start)


@pytest.mark.slow
def test_variates_help_where_clients_differ(tmp_path: Path) -> None:
    reached = {}
    for algorithm in ("fedavg", "scaffold"):
        settings = train_settings(
            **{**TINY, "algorithm": algorithm, "rounds": 30, "clients": 20, "local_steps": 20, "learning_rate": 1.0}
        )
        reached[algorithm] = train(
            settings, tmp_path, TrainFolder(tmp_path / algorithm), TrainOptions(evaluate_every=30)
        ).accuracy
    assert reached["scaffold"] > reached["fedavg"]


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"algorithm": "fedsgd"}, "set local_steps to 1"),
        ({"algorithm": "scaffold", "defense": "fed_sdp"}, "use a defense of the local step"),
        ({"algorithm": "fedprox"}, "algorithm"),
    ],
)
def test_mistakes(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        train_settings(**{**TINY, **changes})


@pytest.mark.parametrize(
    ("changes", "fix"),
    [({"dataset": "cancer", "model": "mlp2"}, "no natural clients"), ({"clients": 101}, "lower clients")],
)
def test_clients_that_do_not_exist(tmp_path: Path, changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        training(tmp_path, **changes)
