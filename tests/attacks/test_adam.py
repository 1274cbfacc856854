"""The batched Adam against ``torch.optim.Adam``."""

import math

import pytest
import torch
from torch import Tensor

from harness.attacks.adam import Adam

ROWS, SIZE = 3, 5


def evaluate(position: Tensor) -> tuple[Tensor, Tensor]:
    """A curved valley in every row."""
    leaf = position.detach().requires_grad_(True)
    losses = ((1 - leaf) ** 2).sum(1) + 5 * (leaf[:, 1:] - leaf[:, :-1] ** 2).square().sum(1)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), gradient


def start() -> Tensor:
    return torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    "settings",
    [
        Adam(40),
        Adam(40, learning_rate=0.01, betas=(0.5, 0.9)),
        Adam(40, signed=True, decay="step"),
        Adam(40, decay="cosine", warm_up=10),
    ],
)
def test_follows_torch(settings: Adam) -> None:
    state = settings.start(start())
    parameter = torch.nn.Parameter(start())
    optimizer = torch.optim.Adam([parameter], betas=settings.betas)
    for iteration in range(settings.iterations):
        assert torch.equal(state.step(evaluate), torch.ones(ROWS, dtype=torch.float64))
        optimizer.param_groups[0]["lr"] = settings.rate(iteration)
        gradient = evaluate(parameter)[1]
        parameter.grad = gradient.sign() if settings.signed else gradient
        optimizer.step()
        assert (state.position - parameter).abs().max() < 1e-10
    assert (evaluate(state.position)[0] < evaluate(start())[0]).all()


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        (Adam(1000), {0: 0.1, 999: 0.1}),
        (Adam(1000, 0.4, decay="step"), {0: 0.4, 374: 0.4, 375: 0.04, 624: 0.04, 625: 0.004, 875: 0.004, 876: 0.0004}),
        (Adam(100, decay="cosine"), {0: 0.1, 50: 0.05, 25: 0.05 * (1 + math.sqrt(0.5)), 100: 0.0}),
        (Adam(110, decay="cosine", warm_up=10), {0: 0.01, 4: 0.05, 9: 0.1, 10: 0.1, 60: 0.05}),
    ],
)
def test_learning_rates_by_hand(settings: Adam, rates: dict[int, float]) -> None:
    assert {iteration: settings.rate(iteration) for iteration in rates} == pytest.approx(rates)


def test_signed_steps_ignore_the_gradients_size() -> None:
    def steep(position: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradient = evaluate(position)
        return losses, gradient * torch.tensor([1.0, 1e-4, 1e4], dtype=torch.float64)[:, None]

    settings = Adam(10, signed=True)
    plain, scaled = settings.start(start()), settings.start(start())
    for _ in range(10):
        plain.step(evaluate)
        scaled.step(steep)
    assert torch.equal(plain.position, scaled.position)


def test_take_keeps_each_rows_moments() -> None:
    settings = Adam(20)
    part, whole = settings.start(start()), settings.start(start())
    for state in (part, whole):
        for _ in range(5):
            state.step(evaluate)
    part.take(torch.tensor([2, 0]))
    for _ in range(5):
        part.step(evaluate)
        whole.step(evaluate)
    assert torch.equal(part.position, whole.position[[2, 0]])
