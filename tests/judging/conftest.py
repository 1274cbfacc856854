"""Clients of somebody's federation: plain torch on the 8x8 digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from federation_cases import Client
from harness.capture import captured
from harness.models.networks import build_module
from harness.testing import digits

SHAPE, CLASSES, RATE = (1, 8, 8), 10, 0.05


Federation = Callable[..., list[Path]]


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, coarse_losses: None) -> None:
    """No pictures, but for tests that look at them (``drawn``), and no tighter epsilon than a test asks for."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("harness.cli.judge.save_cell_picture", lambda *_, **__: None)


@pytest.fixture
def drawn() -> None:
    """Pictures are drawn."""


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Captures so many clients of one round, and returns their folders.

    ``how`` are the fields of Client; what is declared may be something else. ``same_data``: all hold what the first
    one does; ``apart``: each starts from a network of its own.
    """

    def train(
        count: int, truth: bool = True, declared: Any = None, same_data: bool = False, apart: bool = False,
        name: str = "captures", **how: Any,
    ) -> list[Path]:  # fmt: skip
        client = Client(**how)
        network = build_module("mlp", SHAPE, CLASSES, seed=0)
        start = {name: value.clone() for name, value in network.state_dict().items()}
        images, labels = digits(count, client.batch * client.steps)
        folders = []
        if same_data:
            images, labels = images[:1].expand_as(images), labels[:1].expand_as(labels)
        for number in range(count):
            network.load_state_dict(build_module("mlp", SHAPE, CLASSES, seed=number).state_dict() if apart else start)
            facts: dict[str, Any] = {
                "model": "mlp", "image_shape": SHAPE, "classes": CLASSES, "learning_rate": RATE,
                "batch_size": client.batch, "local_steps": client.steps, "defense": declared,
            }  # fmt: skip
            folders.append(tmp_path / name / str(number))
            with captured(network, folders[-1], **facts) as capture:
                client.train(network, images[number], labels[number], RATE, number)
                if truth:
                    capture.batch(images[number], labels[number])
        return folders

    return train
