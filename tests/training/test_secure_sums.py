"""Training with one secure aggregation per round: what it adds up to, what does not change it, what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.defenses import Defense
from harness.training import TrainFolder, Training, TrainOptions, train, train_settings

TINY: dict[str, Any] = {
    "dataset": "cancer", "model": "mlp2", "clients": 5, "clients_per_round": 5, "client_sampling": "all", "rounds": 3,
    "local_steps": 4, "batch_size": 3, "batch_sampling": "poisson", "split": "iid", "defense": "secagg_ddp",
}  # fmt: skip
PAPER = {"mechanism": "gaussian", "mode": "paper"}


def settings(defense_args: dict[str, Any] | None = None, **changes: Any) -> Any:
    return train_settings(**{**TINY, "defense_args": defense_args or {}, **changes})


def weights(of: Any, root: Path, rounds: int = 2, chunk: int = 5) -> torch.Tensor:
    training = Training(of, root)
    for now in range(rounds):
        training.play_round(now, chunk)
    return training.weights


def test_without_noise_it_is_federated_averaging(tmp_path: Path) -> None:
    """With a bound that clips nothing; both modes, to the rounding of the grid."""
    plain = weights(settings(defense="none"), tmp_path)
    for arguments in ({}, {"mode": "paper"}, PAPER):
        made = weights(settings({**arguments, "sigma": 0.0, "clip": 1000.0}), tmp_path)
        torch.testing.assert_close(made, plain, rtol=1e-3, atol=2e-4)


def test_noise_reaches_the_model_once_for_all_clients(tmp_path: Path) -> None:
    """Per coordinate: eta * sigma * C * sqrt(L) / (K B), whatever the mechanism."""
    for arguments in ({}, PAPER):
        training = Training(settings({**arguments, "sigma": 500.0, "clip": 2.0}), tmp_path)
        before = training.weights.clone()
        training.play_round(0, 5)
        expected = 0.05 * 500 * 2 * 4**0.5 / (5 * 3)
        found = float((training.weights - before).std())
        assert found == pytest.approx(expected, rel=0.02) and found != pytest.approx(1.1 * expected, rel=0.02)


@pytest.mark.parametrize("arguments", [
    {}, pytest.param({"protocol": "sum"}, marks=pytest.mark.slow),
    pytest.param({"mechanism": "poisson_binomial"}, marks=pytest.mark.slow),
    pytest.param(PAPER, marks=pytest.mark.slow),
])  # fmt: skip
def test_chunks_change_nothing_nor_does_the_protocol(tmp_path: Path, arguments: dict[str, Any]) -> None:
    whole, parts = (weights(settings(arguments), tmp_path, chunk=chunk) for chunk in (5, 2))
    assert torch.equal(whole, parts)
    if arguments == {"protocol": "sum"}:
        assert torch.equal(whole, weights(settings({}), tmp_path))


def test_the_servers_momentum_is_heavy_ball(tmp_path: Path) -> None:
    training = Training(settings(PAPER, server_momentum=0.5, server_learning_rate=0.3), tmp_path)
    steps = [training.weights.double()]
    applied: list[torch.Tensor] = []
    aggregate = Defense.aggregate

    def watched(self: Defense, total: torch.Tensor, context: Any) -> torch.Tensor:
        applied.append(aggregate(self, total, context))
        return applied[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Defense, "aggregate", watched)
        for now in range(2):
            training.play_round(now, 5)
            steps.append(training.weights.double())
    torch.testing.assert_close(steps[2] - steps[1], 0.3 * (0.5 * applied[0] + applied[1]), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_document_states_the_claim_and_what_holds(tmp_path: Path) -> None:
    document = train(settings(dataset="digits"), tmp_path, TrainFolder(tmp_path / "run"), TrainOptions())
    stated = {one.view: one for one in document.privacy}
    assert set(stated) == {"third party", "server", "client", "message"}
    assert stated["server"].claimed_epsilon < stated["server"].epsilon == stated["message"].epsilon


@pytest.mark.parametrize(
    ("arguments", "changes", "fix"),
    [
        ({}, {"local_momentum": 0.5}, "use mode=paper"),
        ({}, {"clients": 60, "client_sampling": "fixed"}, "lower --clients or --examples"),
        ({}, {"clients": 8, "client_sampling": "poisson", "clients_per_round": 7, "seed": 1}, "clients are there"),
        ({"bits": 4}, {}, "raise bits"),
    ],
)
def test_rounds_that_cannot_be_summed_are_refused(
    tmp_path: Path, arguments: dict[str, Any], changes: dict[str, Any], fix: str
) -> None:
    with pytest.raises(UsageError, match=fix):
        weights(settings(arguments, **changes), tmp_path, rounds=3)


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"algorithm": "scaffold"}, "use a defense of the local step"),
        ({"algorithm": "scaffold", "defense": "none", "local_momentum": 0.1}, "plain local steps"),
        ({"server_momentum": 1.0}, "server_momentum"),
        ({"local_momentum": -0.1}, "local_momentum"),
    ],
)
def test_mistakes(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        settings(**changes)
