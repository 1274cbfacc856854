"""Rounds of a client whose optimizer lives on: what earlier rounds left in an update is taken away, or refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import SGD, Adam

from harness.base.errors import UsageError
from harness.capture import captured
from harness.judging.capture import Capture, read_capture
from harness.judging.federation import federations, gathered
from harness.models.networks import build_module


def rounds(folder: Path, steps: int = 1, optimizer: type[Any] = SGD, decays: float = 1.0, **arguments: Any) -> Tensor:
    """Captures three rounds of one client of torch's, and returns the gradients (3, P) of their first steps.

    ``decays``: what its learning rate is multiplied by from round to round.
    """
    network, random = build_module("mlp", (1, 8, 8), 10, seed=0), torch.Generator().manual_seed(0)
    lives, made = optimizer(network.parameters(), lr=0.05, **arguments), list[Tensor]()
    for number in range(3):
        lives.param_groups[0]["lr"] = 0.05 * decays**number
        with captured(
            network, folder / str(number), lives, model="mlp", client="a", round=number, strict=True
        ) as watched:
            for step in range(steps):
                images, labels = torch.rand(2, 1, 8, 8, generator=random), torch.arange(2) + number
                lives.zero_grad()
                nn.functional.cross_entropy(network(images), labels).backward()
                if not step:
                    made.append(torch.cat([one.grad.flatten() for one in network.parameters() if one.grad is not None]))
                lives.step()
                watched.batch(images, labels)
        with torch.no_grad():  # what the others sent
            for one in network.parameters():
                one.add_(0.01 * torch.randn(one.shape, generator=random))
    return torch.stack(made)


def kept(folder: Path, *numbers: int) -> list[Capture]:
    return [read_capture(folder / str(number)) for number in numbers]


@pytest.mark.parametrize("arguments", [{}, {"dampening": 0.3, "weight_decay": 0.1}, {"nesterov": True}])
def test_what_momentum_brought_along_is_taken_away(tmp_path: Path, arguments: dict[str, Any]) -> None:
    gradients = rounds(tmp_path, momentum=0.9, **arguments)
    captures = kept(tmp_path, 0, 1, 2)
    assert [one.record.state for one in captures] == ["new", "carried", "carried"]
    read = gathered(captures).target
    torch.testing.assert_close(read, gradients, rtol=1e-4, atol=5e-6)
    with pytest.raises(
        UsageError, match=r"from round 0, of which no update of client 'a' is here \(if .* 1\); add it, or make a"
    ):
        gathered(captures[1:])


@pytest.mark.parametrize("arguments", [{}, {"nesterov": True, "weight_decay": 0.1}])
def test_the_rate_may_differ_from_round_to_round(tmp_path: Path, arguments: dict[str, Any]) -> None:
    gradients = rounds(tmp_path, momentum=0.9, decays=0.5, **arguments)
    captures = kept(tmp_path, 0, 1, 2)
    found = federations(captures)
    assert [one.record.learning_rate for one in found] == [0.05, 0.025, 0.0125]
    torch.testing.assert_close(torch.cat([one.target for one in found]), gradients, rtol=1e-4, atol=1e-5)
    new = [replace(one, record=one.record.model_copy(update={"state": "new"})) for one in captures]
    with pytest.raises(UsageError, match="captures differ in learning_rate"):
        federations(new)


def test_what_cannot_be_taken_away_is_refused(tmp_path: Path) -> None:
    """In the capture, as soon as it is known; or where the rounds are judged."""
    for steps, optimizer, arguments in ((2, SGD, {"momentum": 0.9}), (1, Adam, {})):
        with pytest.raises((UsageError, ValidationError), match="make a new optimizer for the captured round"):
            rounds(tmp_path / optimizer.__name__, steps, optimizer, **arguments)
    assert read_capture(tmp_path / "SGD" / "0").record.local_steps == 2
