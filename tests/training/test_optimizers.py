"""Optimizers of clients and of the server in training, held against torch and against the paper's formulas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.training import TrainFolder, Training, TrainOptions, train, train_settings
from harness.training.settings import server_optimizer_of

SETTINGS: dict[str, Any] = {
    "dataset": "cancer", "model": "logistic", "clients": 4, "clients_per_round": 4, "local_steps": 3, "batch_size": 4,
    "split": "iid",
}  # fmt: skip
CLIENTS = {
    "adam:lr=0.01": (torch.optim.Adam, {"lr": 0.01}),
    "adamw:lr=0.01,weight_decay=0.5": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.5}),
    "sgd:lr=0.05,momentum=0.6": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.6}),
    "sgd:lr=0.05,momentum=0.6,nesterov=true": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.6, "nesterov": True}),
}


@pytest.mark.parametrize("optimizer", CLIENTS)
def test_a_client_trains_as_torch_does(optimizer: str, tmp_path: Path, train_plainly: Callable[..., None]) -> None:
    training = Training(
        train_settings(**SETTINGS | {"clients": 1, "clients_per_round": 1}, optimizer=optimizer), tmp_path
    )
    module, (kind, arguments) = training.model.plain(training.weights), CLIENTS[optimizer]
    train_plainly(training, 0, 0, module, kind(module.parameters(), **arguments))
    training.play_round(0, 2)
    expected = torch.cat([each.detach().flatten() for each in module.parameters()])
    torch.testing.assert_close(training.weights, expected, rtol=1e-4, atol=1e-6)


UPDATES = torch.tensor([[0.3, -0.2, 0.0], [0.1, 0.4, -0.001], [-0.5, 0.1, 0.2]], dtype=torch.float64)


def moved(text: str) -> list[float]:
    server, rate = server_optimizer_of(text)
    here = mean = torch.zeros(3, dtype=torch.float64)
    squares = server.beginning(here)
    for update in UPDATES:
        step, mean, squares = server.step(mean, squares, update)
        here = here + (rate or 1.0) * step
    return here.tolist()


def by_the_paper(name: str, lr: float, beta1: float, beta2: float, tau: float) -> list[float]:
    """Algorithm 2 of Reddi et al., number by number."""
    found = []
    for updates in UPDATES.T.tolist():
        x, m, v = 0.0, 0.0, tau**2
        for one in updates:
            m, new = beta1 * m + (1 - beta1) * one, one**2
            sign = (v > new) - (v < new)
            v = {"fedadagrad": v + new, "fedyogi": v - (1 - beta2) * new * sign,
                 "fedadam": beta2 * v + (1 - beta2) * new}[name]  # fmt: skip
            x += lr * m / (v**0.5 + tau)
        found.append(x)
    return found


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers_are_the_papers(name: str) -> None:
    text = f"{name}:lr=0.1,beta1=0.8,tau=0.05" + ("" if name == "fedadagrad" else ",beta2=0.9")
    assert moved(text) == pytest.approx(by_the_paper(name, 0.1, 0.8, 0.9, 0.05), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("fedavgm:lr=0.1,momentum=0.9", lambda one: torch.optim.SGD([one], lr=0.1, momentum=0.9)),
        ("fedadagrad:lr=0.1,tau=0.05", lambda one: torch.optim.Adagrad(
            [one], lr=0.1, initial_accumulator_value=0.05**2, eps=0.05)),
    ],
)  # fmt: skip
def test_servers_are_torchs_where_torch_has_them(text: str, made: Any) -> None:
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    theirs = made(weights)
    for update in UPDATES:
        weights.grad = -update
        theirs.step()
    assert moved(text) == pytest.approx(weights.tolist(), rel=1e-12)


def test_a_stopped_run_goes_on_with_the_server_it_had(tmp_path: Path) -> None:
    def run(folder: str, rounds: int, server: str = "fedadam:lr=0.05,tau=0.01", resume: bool = False) -> Any:
        settings = train_settings(**SETTINGS, rounds=rounds, server_optimizer=server)
        return train(settings, tmp_path, TrainFolder(tmp_path / folder), TrainOptions(resume=resume))

    whole, first = run("whole", 3), run("parts", 2)
    assert first.settings["server_optimizer"] == "fedadam:beta1=0.9,beta2=0.99,tau=0.01"
    assert first.settings["server_learning_rate"] == 0.05
    for other in ("fedavg", "fedyogi:lr=0.05,tau=0.01"):
        with pytest.raises(UsageError, match="other settings"):
            run("parts", 3, other, resume=True)
    assert [one.loss for one in run("parts", 3, resume=True).rounds] == [one.loss for one in whole.rounds]
    assert whole.rounds[-1].loss != run("plain", 3, "fedavg").rounds[-1].loss


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        ({}, {}),
        ({"local_momentum": 0.9}, {"local_momentum": 0.9}),
        ({"optimizer": "sgd:momentum=0.9"}, {"local_momentum": 0.9}),
        ({"optimizer": {"name": "SGD", "momentum": 0.9, "lr": 0.1}}, {"local_momentum": 0.9, "learning_rate": 0.1}),
        ({"server_momentum": 0.5}, {"server_momentum": 0.5}),
        ({"server_optimizer": "fedavgm:momentum=0.5,lr=2"}, {"server_momentum": 0.5, "server_learning_rate": 2.0}),
        ({"optimizer": "adam:lr=0.001"}, {"optimizer": "adam", "learning_rate": 0.001}),
        ({"server_optimizer": {"name": "FedAdagrad", "tau": 1}}, {"server_optimizer": "fedadagrad:beta1=0.0,tau=1.0"}),
        ({"epochs": 2, "examples": 10, "local_steps": 100}, {"epochs": 2, "examples": 10, "local_steps": 4}),
    ],
)  # fmt: skip
def test_what_momentum_describes_is_stored_as_ever(values: dict[str, Any], stored: dict[str, Any]) -> None:
    usual, made = train_settings(**SETTINGS), train_settings(**SETTINGS | values)
    assert not {"optimizer", "server_optimizer", "epochs"} & usual.model_dump().keys()
    assert made.model_dump(mode="json") == usual.model_dump(mode="json") | stored
    again = train_settings(**made.model_dump(mode="json"))
    assert again == made and again.local_optimizer.momentum == made.local_momentum


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"optimizer": "sgd:momentum=0.9", "local_momentum": 0.5}, "local_momentum is 0.5 and the optimizer is"),
        ({"optimizer": "adam", "local_momentum": 0.5}, "give one"),
        ({"optimizer": "adam:lr=0.1", "learning_rate": 0.2}, "give one"),
        ({"server_optimizer": "fedadam", "server_momentum": 0.5}, "give one"),
        ({"server_optimizer": "fedadam:lr=0.1", "server_learning_rate": 0.2}, "give one"),
        ({"server_optimizer": "fedadam:momentum=0.1"}, "fedadam has no momentum; it has beta1, beta2, tau"),
        ({"server_optimizer": "fedsgd"}, "write for example fedadam:lr=0.01"),
        ({"server_optimizer": "fedadam:tau=0"}, "greater than 0"),
        ({"optimizer": "sgd:schedule=0.1/0.2"}, "has 2 rates and there are 3 local_steps"),
        ({"optimizer": "sgd:accumulate=3"}, "divide batch_size"),
        ({"optimizer": "adam", "algorithm": "scaffold"}, "takes plain local steps"),
        ({"optimizer": "adam", "defense": "secagg_ddp"}, "noise of a secure sum adds up"),
        ({"epochs": 2, "local_steps": 100}, "give examples"),
        ({"epochs": 2, "examples": 10, "local_steps": 5}, "are not 5 local_steps"),
    ],
)  # fmt: skip
def test_contradictions_are_one_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as problem:
        train_settings(**SETTINGS | values)
    assert said in str(problem.value) and "\n" not in str(problem.value)
