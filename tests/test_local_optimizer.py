"""Local optimizers step as torch's do, and what is read of their updates is the gradient that was applied."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.judging.capture import facts_of
from harness.local_optimizer import (
    Remembered,
    optimizer_of,
    reading_of,
    with_rate,
)

RATE = 0.01
Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def made(kind: type[torch.optim.Optimizer], **arguments: Any) -> Make:
    return lambda parameters: kind(parameters, lr=RATE, **arguments)  # pyright: ignore[reportCallIssue]


SGD, ADAM, ADAMW, RMSPROP = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
OPTIMIZERS: dict[str, Make] = {
    "sgd": made(SGD),
    "sgd:momentum=0.9": made(SGD, momentum=0.9),
    "sgd:dampening=0.3,momentum=0.9,weight_decay=0.1": made(SGD, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "sgd:momentum=0.9,nesterov=true": made(SGD, momentum=0.9, nesterov=True),
    "sgd:weight_decay=0.1": made(SGD, weight_decay=0.1),
    "adam": made(ADAM),
    "adam:betas=0.8/0.99,weight_decay=0.1": made(ADAM, betas=(0.8, 0.99), weight_decay=0.1),
    "adamw": made(ADAMW),
    "adamw:weight_decay=0.1": made(ADAMW, weight_decay=0.1),
    "rmsprop": made(RMSPROP),
    "rmsprop:alpha=0.9,momentum=0.5": made(RMSPROP, alpha=0.9, momentum=0.5),
}


def played(text: str, gradients: Tensor, start: Tensor) -> Tensor:
    optimizer, here, memory = optimizer_of(text), start, Remembered()
    for gradient in gradients:
        direction, memory = optimizer.direction(gradient, here, memory)
        here = here - RATE * direction
    return here


def by_torch(make: Make, gradients: Tensor, start: Tensor, clip: float | None = None) -> Tensor:
    weights = start[0].clone().requires_grad_(True)
    optimizer = make([weights])
    for gradient in gradients:
        weights.grad = gradient[0].clone()
        if clip:
            torch.nn.utils.clip_grad_norm_([weights], clip)
        optimizer.step()
    return weights.detach()[None]


@pytest.fixture
def drawn() -> tuple[Tensor, Tensor]:
    """Gradients (5, 1, P) and weights (1, P)."""
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, 40, generator=random, dtype=torch.float64) for shape in ((5, 1), (1,)))  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_steps_are_torchs(text: str, drawn: tuple[Tensor, Tensor]) -> None:
    gradients, start = drawn
    ours, theirs = played(text, gradients, start), by_torch(OPTIMIZERS[text], gradients, start)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-15)
    assert (played("sgd:momentum=0.8", gradients, start) - theirs).abs().max() > 1e-4
    assert optimizer_of(text).text == text


def test_clipped_gradients_are_torchs(drawn: tuple[Tensor, Tensor]) -> None:
    gradients, start = drawn
    theirs = by_torch(OPTIMIZERS["sgd:momentum=0.9"], gradients, start, clip=2.0)
    torch.testing.assert_close(played("sgd:clip_grad_norm=2,momentum=0.9", gradients, start), theirs)


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_the_facts_of_a_torch_optimizer_are_its_text(text: str) -> None:
    weights = torch.zeros(3, requires_grad=True)
    optimizer = OPTIMIZERS[text]([weights])
    ours, rate = with_rate(facts_of(optimizer))
    assert (ours.text, rate) == (text, RATE)
    if ours.momentum or ours.name != "sgd":
        weights.sum().backward()
        optimizer.step()
        with pytest.raises(UsageError, match="remembers steps of earlier rounds"):
            facts_of(optimizer)


@pytest.mark.parametrize("text", [text for text in OPTIMIZERS if text.startswith("sgd")])
def test_the_update_of_sgd_is_a_weighted_mean_of_gradients(text: str, drawn: tuple[Tensor, Tensor]) -> None:
    gradients, start = drawn
    reading = reading_of(optimizer_of(text), 5, RATE, changed=False)
    assert reading.shares is not None and sum(reading.shares) == pytest.approx(5)
    update = played(text, gradients, start) - start
    mean = (gradients * torch.tensor(reading.shares, dtype=torch.float64)[:, None, None]).mean(0)
    torch.testing.assert_close(reading.gradient(update, start), mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(reading.update(mean, start), update, rtol=1e-6, atol=1e-8)
    clipped = reading_of(optimizer_of(text), 5, RATE, changed=True)
    assert (clipped.shares is None) == ("weight_decay" in text)


@pytest.mark.parametrize("text", ["adam", "adamw", "rmsprop"])
def test_the_first_adaptive_step_gives_small_gradients_away(text: str) -> None:
    sizes = torch.logspace(-11, -2, 90, dtype=torch.float64)
    gradient = torch.where(torch.arange(90) % 2 == 0, sizes, -sizes)[None]
    start = torch.linspace(-0.1, 0.1, 90)[None]
    after = played(text, gradient[None], start.double()).to(torch.float32)
    reading = reading_of(optimizer_of(text), 1, RATE, changed=False)
    read = reading.gradient(after.double() - start.double(), start)
    weights = reading.certainty(read, start)
    assert weights is not None and read.isfinite().all()
    assert (read.sign() == gradient.sign())[sizes[None] > 1e-9].all()
    off = ((read - gradient).abs() / gradient.abs())[0]
    assert off[(sizes > 1e-9) & (sizes < 1e-6)].max() < 0.01 and off[-10:].max() > 0.001
    # The error that is believed is that which there is, within a factor, and least where gradients are small.
    standard = (read - gradient).abs() * weights / (weights * read).norm() * read.norm()
    assert weights[0, 5] > 100 * weights[0, -1] and standard.median() < 1
    # Nothing is believed to be more exact than the client's own gradient in single precision.
    near = int((sizes < 3e-8).sum())
    torch.testing.assert_close(weights[0, :near], weights[:, :1].expand(-1, near)[0], rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lion", "'sgd', 'adam', 'adamw' or 'rmsprop'"), ("adam:momentum=0.9", "adam has no momentum"),
        ("sgd:nesterov=true", "nesterov needs momentum"), ("sgd:momentum", "is not key=value"),
        ("sgd:momentum=1", "less than 1"), ("sgd:lr=0", "lr must be above 0"), ("sgd:lr=x", "could not convert"),
    ],
)  # fmt: skip
def test_what_is_no_optimizer_is_told_in_one_line(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        with_rate(given)
    assert "\n" not in str(told.value)


def test_groups_and_classes_that_cannot_be_judged_are_told() -> None:
    weights = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    apart = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}], lr=0.1)
    for optimizer, said in (
        (apart, "groups of parameters"), (torch.optim.Adagrad(weights), "'Adagrad' is none"),
        (torch.optim.Adam(weights, amsgrad=True), "amsgrad=True"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            facts_of(optimizer)
