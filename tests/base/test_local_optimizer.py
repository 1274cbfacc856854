"""Local optimizers step as torch's do, and what is read of their updates is the gradient that was applied."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.local_optimizer import (
    Remembered,
    optimizer_of,
    reading_of,
    with_rate,
)
from harness.capture.optimizers import facts_of

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


# Rates, batches of a step, whether these are added up, and FedProx's mu, around torch's optimizer of the same line.
AROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd:schedule=0.01/0.02/0.005": ("sgd", {"rates": (0.01, 0.02, 0.005)}),
    "adamw:schedule=0.01/0.02/0.005": ("adamw", {"rates": (0.01, 0.02, 0.005)}),
    "sgd:momentum=0.9,schedule=0.0/0.01/0.005": ("sgd:momentum=0.9", {"rates": (0.0, 0.01, 0.005)}),
    "adam:schedule=0.0/0.01/0.0": ("adam", {"rates": (0.0, 0.01, 0.0)}),
    "sgd:fedprox=0.7": ("sgd", {"mu": 0.7}),
    "sgd:dampening=0.3,fedprox=0.7,momentum=0.9,schedule=0.01/0.02/0.005,weight_decay=0.1": (
        "sgd:dampening=0.3,momentum=0.9,weight_decay=0.1", {"mu": 0.7, "rates": (0.01, 0.02, 0.005)},
    ),
    "sgd:accumulate=4,momentum=0.9": ("sgd:momentum=0.9", {"batches": 4}),
    "adam:accumulate=4,accumulate_sum=true,clip_grad_norm=9.0,fedprox=0.7": (
        "adam", {"batches": 4, "added": True, "mu": 0.7, "clip": 9.0},
    ),
    "sgd:loss_scale=4.0,weight_decay=0.1": ("sgd:weight_decay=0.1", {"times": 4.0}),
    "sgd:accumulate=2,accumulate_sum=true,fedprox=0.7,loss_scale=0.25,momentum=0.9": (
        "sgd:momentum=0.9", {"batches": 2, "added": True, "mu": 0.7, "times": 0.25},
    ),
}  # fmt: skip


def played(text: str, gradients: Tensor, start: Tensor) -> Tensor:
    optimizer, here, memory = optimizer_of(text), start, Remembered()
    for gradient in gradients:
        direction, memory = optimizer.direction(gradient, here, memory)
        here = here - RATE * direction
    return here


def by_torch(
    make: Make, gradients: Tensor, start: Tensor, clip: float | None = None, rates: tuple[float, ...] | None = None,
    mu: float = 0.0, batches: int = 1, added: bool = False, times: float = 1.0,
) -> Tensor:  # fmt: skip
    """Losses whose gradients in the batches of a step are these on average, summed up by autograd as loops do it."""
    weights = start[0].clone().requires_grad_(True)
    optimizer, uneven = make([weights]), torch.linspace(-1, 1, batches, dtype=torch.float64) if batches > 1 else [0.0]
    for step, gradient in enumerate(gradients):
        optimizer.zero_grad()
        for apart in uneven:
            loss = times * weights @ gradient[0] * (1 + apart) + mu / 2 * (weights - start[0]).square().sum()
            (loss if added else loss / batches).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_([weights], clip)
        if rates:
            optimizer.param_groups[0]["lr"] = rates[step]
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


@pytest.mark.parametrize("text", AROUND)
def test_what_a_loop_does_around_torchs_optimizer(text: str, drawn: tuple[Tensor, Tensor]) -> None:
    (gradients, start), (plain, around) = drawn, AROUND[text]
    ours, theirs = played(text, gradients[:3], start), by_torch(OPTIMIZERS[plain], gradients[:3], start, **around)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-15)
    if around != {"batches": 4}:
        assert (played(plain, gradients[:3], start) - theirs).abs().max() > 1e-5
    assert optimizer_of(text).text == text


def test_clipped_gradients_are_torchs(drawn: tuple[Tensor, Tensor]) -> None:
    gradients, start = drawn
    theirs = by_torch(OPTIMIZERS["sgd:momentum=0.9"], gradients, start, clip=2.0)
    torch.testing.assert_close(played("sgd:clip_grad_norm=2,momentum=0.9", gradients, start), theirs)


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_the_facts_of_a_torch_optimizer_are_its_text(text: str) -> None:
    ours, rate = with_rate(facts_of(OPTIMIZERS[text]([torch.zeros(3, requires_grad=True)])))
    assert (ours.text, rate) == (text, RATE)


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_torchs_own_arguments_are_its_text(text: str) -> None:
    """Pasted as they are, with those that say how a step is computed."""
    optimizer = OPTIMIZERS[text]([torch.zeros(3, requires_grad=True)])
    pasted = {"name": type(optimizer).__name__, **optimizer.defaults}
    assert "foreach" in pasted and with_rate(pasted)[0].text == text


@pytest.mark.parametrize("text", ["sgd:momentum=0.9", "sgd:dampening=0.3,momentum=0.9,schedule={},weight_decay=0.1"])
def test_many_steps_take_no_more_than_a_few_numbers_each(text: str) -> None:
    """Not their square: 5,000 steps took 200 MB for a matrix, 200,000 took 320 GB."""
    rates = "/".join(f"{RATE * (1 + step % 3)}" for step in range(2000))
    reading = reading_of(optimizer_of(text.format(rates)), 2000, RATE, changed=False)
    assert reading.shares is not None and len(reading.shares) == 2000
    short = reading_of(optimizer_of("sgd:momentum=0.9"), 1, RATE, changed=False)
    if "schedule" not in text:  # the last step moves by its own gradient alone
        assert reading.shares[-1] * reading.rate == pytest.approx(short.rate)
        assert reading.shares[0] * reading.rate == pytest.approx(RATE / 0.1)
    with pytest.raises(UsageError, match="local_steps 300,000 are more than are read of sgd"):
        reading_of(optimizer_of("sgd:momentum=0.9"), 300_000, RATE, changed=False)


@pytest.mark.parametrize("text", [text for text in (*OPTIMIZERS, *AROUND) if text.startswith("sgd")])
def test_the_update_of_sgd_is_a_weighted_mean_of_gradients(text: str, drawn: tuple[Tensor, Tensor]) -> None:
    steps = len(optimizer_of(text).schedule or range(5))
    gradients, start = drawn[0][:steps], drawn[1]
    reading = reading_of(optimizer_of(text), steps, RATE, changed=False)
    assert reading.shares is not None and sum(reading.shares) == pytest.approx(steps)
    update = played(text, gradients, start) - start
    mean = (gradients * torch.tensor(reading.shares, dtype=torch.float64)[:, None, None]).mean(0)
    torch.testing.assert_close(reading.gradient(update, start), mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(reading.update(mean, start), update, rtol=1e-6, atol=1e-8)
    clipped = reading_of(optimizer_of(text), steps, RATE, changed=True)
    assert (clipped.shares is None) == ("weight_decay" in text)


# The same first step, of torch's optimizer and what stands around it.
FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("adam", {}), "adamw:weight_decay=0.1": ("adamw:weight_decay=0.1", {}), "rmsprop": ("rmsprop", {}),
    "rmsprop:alpha=0.9,momentum=0.5": ("rmsprop:alpha=0.9,momentum=0.5", {}), "adam:fedprox=0.7": ("adam", {"mu": 0.7}),
    "adam:accumulate=4,accumulate_sum=true": ("adam", {"batches": 4, "added": True}),
    "adam:loss_scale=4": ("adam", {"times": 4.0}), "rmsprop:loss_scale=0.1": ("rmsprop", {"times": 0.1}),
    "adamw:schedule=0.02": ("adamw", {"rates": (0.02,)}),
    "sgd:accumulate=4,accumulate_sum=true,weight_decay=0.1": ("sgd:weight_decay=0.1", {"batches": 4, "added": True}),
}  # fmt: skip


@pytest.mark.parametrize("text", FIRST)
def test_a_first_step_of_torchs_is_read_as_the_gradient(text: str, drawn: tuple[Tensor, Tensor]) -> None:
    """Of gradients of about 1e-7, whose sizes Adam leaves to be read in float64."""
    (plain, around), gradients, start = FIRST[text], drawn[0][:1] * 1e-7, drawn[1]
    moved = by_torch(OPTIMIZERS[plain], gradients, start, **around) - start
    reading = reading_of(optimizer_of(text), 1, around.get("rates", (RATE,))[0], changed=False)
    torch.testing.assert_close(reading.gradient(moved, start), gradients[0], rtol=1e-5, atol=1e-14)
    naive = reading_of(optimizer_of("adam"), 1, RATE, changed=False).gradient(moved, start)
    assert text in ("adam", "adam:fedprox=0.7") or (naive - gradients[0]).abs().max() > 1e-8


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
        ("sgd:schedule=0/0", "all rates of the schedule are 0"),
        ("sgd:lr=0.2,schedule=0.1/0.2", "begins with 0.1, its lr is 0.2"),
        ("sgd:accumulate_sum=true", "give their number"), ("adam:accumulate=0", "greater than or equal to 1"),
        ("sgd:schedule=-0.1", "greater than or equal to 0"), ("sgd:lr=-0.1", "lr must be above 0"),
        ("sgd:maximize=true", "maximize=true cannot be judged"),
        ("sgd:momentum=0.9,momentum=0.8", "momentum is given twice; give it once"),
    ],
)  # fmt: skip
def test_what_is_no_optimizer_is_told_in_one_line(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        with_rate(given)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["sgd:maximize=false,fused=true", "sgd:maximize=False", "sgd"])
def test_arguments_that_change_nothing_may_be_said(text: str) -> None:
    assert with_rate(text)[0].is_plain


def test_groups_and_classes_that_cannot_be_judged_are_told() -> None:
    weights = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    apart = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "momentum": 0.5}], lr=0.1)
    for optimizer, said in (
        (apart, "groups of parameters"), (torch.optim.Adagrad(weights), "'Adagrad' is none"),
        (torch.optim.Adam(weights, amsgrad=True), "amsgrad=True"),
        (type("Adam", (torch.optim.Adam,), {})(weights), "Adam' is none"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            facts_of(optimizer)


GROUPS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd:groups=30x1.0x0.0/10x0.5x0.0,momentum=0.9": (SGD, {"momentum": 0.9}),
    "sgd:groups=30x1.0x0.1/10x0.5x0.0": (SGD, {}),
    "adamw:groups=30x1.0x0.1/10x0.5x0.0": (ADAMW, {}),
    "rmsprop:groups=30x1.0x0.0/10x0.5x0.1": (RMSPROP, {}),
}


@pytest.mark.parametrize("text", GROUPS)
def test_groups_step_as_torchs(text: str, drawn: tuple[Tensor, Tensor]) -> None:
    """And where their steps weigh alike, what is read of their updates is the gradient that was applied."""
    gradients, start = drawn
    (kind, more), optimizer = GROUPS[text], optimizer_of(text)
    parts = [one.clone().requires_grad_(True) for one in start[0].split((30, 10))]
    rates = [{"lr": RATE * factor, "weight_decay": decay} for _, factor, decay in optimizer.groups]
    torchs = kind([{"params": [one]} | rate for one, rate in zip(parts, rates, strict=True)], **more)  # pyright: ignore
    for gradient in gradients:
        for part, one in zip(parts, gradient[0].split((30, 10)), strict=True):
            part.grad = one
        torchs.step()
    torch.testing.assert_close(played(text, gradients, start)[0], torch.cat(parts).detach(), rtol=1e-13, atol=1e-15)
    assert optimizer.text == text
    several, one = (reading_of(optimizer, steps, RATE, changed=False) for steps in (5, 1))
    assert (several.shares is None) == ("momentum" not in text)
    update = played(text, gradients[:1], start) - start
    assert one.shares is None or torch.equal(one.gradient(update, start).sign(), gradients[0].sign())
    if text.startswith("sgd"):
        assert reading_of(optimizer, 1, RATE, changed=True).shares is None
        read = one.gradient(update, start)
        torch.testing.assert_close(read, gradients[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.update(read, start), update, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sgd:groups=30x0x0", "groups.*greater than 0"), ("sgd:groups=30x1", "groups"), ("sgd:groups=x", "groups"),
        ("sgd:weight_decay=0.1,groups=40x1x0", "groups have a weight_decay each"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_are_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        optimizer_of(text)
    assert "\n" not in str(told.value)


def test_groups_of_another_network_are_named(drawn: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(UsageError, match="groups are of 39 weights, and the network has 40; correct them"):
        played("sgd:groups=39x1x0", *drawn)
