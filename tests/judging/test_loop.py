"""A capture around a training loop reads how it trains, changes nothing of it, and never breaks it."""

import copy
import io
import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from harness.base.errors import UsageError
from harness.capture import CaptureRecord, captured, write_capture
from harness.capture.loop import Round
from harness.capture.watch import Watch
from harness.judging.capture import read_capture
from harness.judging.federation import federations
from harness.judging.framework_defenses import Declared


@pytest.mark.parametrize(
    ("dtype", "said"), [(torch.bfloat16, "bfloat16"), (torch.float32, None), (torch.float16, "float16")]
)
def test_numbers_are_kept_as_they_are_and_their_kind_is_said(
    tmp_path: Path, dtype: torch.dtype, said: str | None
) -> None:
    network = nn.Linear(4, 2).to(dtype)
    facts = {"model": "m:make", "image_shape": (1, 2, 2), "classes": 2, "learning_rate": 0.1, "batch_size": 1}
    with captured(network, tmp_path / "0", strict=True, **facts):
        pass
    kept = read_capture(tmp_path / "0")
    assert kept.record.dtype == said
    assert torch.equal(torch.from_numpy(kept.moved["weight"]).to(dtype), network.weight)


class Adapted(nn.Module):
    """As peft names them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 1, bias=False)})


def test_adapters_are_told_before_the_training_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not trained is read from the network."""
    facts = {"model": "m:make", "image_shape": (1, 2, 2), "classes": 2, "learning_rate": 0.1, "batch_size": 1}
    with captured(Adapted(), tmp_path / "0", **facts):
        said = capsys.readouterr().err
    assert "'lora_A.default.weight' is an adapter's weight: judge --checks-only" in said and said.count("\n") == 1
    kept = read_capture(tmp_path / "0")
    assert kept.record.frozen == ("layer.weight", "layer.bias") and "lora_A.default.weight" in kept.moved


class Net(nn.Module):
    """A client's network, whose class takes no arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.0))
        self.head = nn.Linear(2 * 6 * 6, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


Build = Callable[[Any], Optimizer]
MODEL = f"{Net.__module__}:Net()+no_dropout"


def data(count: int) -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(count, 1, 8, 8, generator=random), torch.arange(count) % 5)


def client(count: int = 7, size: int = 3, **how: Any) -> tuple[Net, DataLoader[Any]]:
    torch.manual_seed(0)
    return Net(), DataLoader(data(count), size, **how)


def step(network: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()


def train(network: nn.Module, optimizer: Optimizer, loader: Any, epochs: int = 1, scheduler: Any = None) -> None:
    for _ in range(epochs):
        for images, labels in loader:
            step(network, optimizer, images, labels)
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda weights: SGD(weights, 0.1), "sgd"),
        (lambda weights: SGD(weights, 0.1, momentum=0.9, nesterov=True), "sgd:momentum=0.9,nesterov=true"),
        (lambda weights: Adam(list(weights), torch.tensor(0.1), betas=(0.8, 0.99)), "adam:betas=0.8/0.99"),
        (lambda weights: AdamW(weights, 0.1), "adamw"),
        (lambda weights: RMSprop([{"params": [one]} for one in weights], 0.1, alpha=0.9), "rmsprop:alpha=0.9"),
    ],
)
@pytest.mark.parametrize(("given", "facts"), [(True, {}), (False, {}), (True, {"learning_rate": 0.1})])
def test_all_is_read_from_the_objects(
    tmp_path: Path, build: Build, text: str, given: bool, facts: dict[str, float]
) -> None:
    """Also of an optimizer that is built after the capture began, of a loader that nobody names, and of an optimizer
    beside a learning rate."""
    network, loader = client(shuffle=True)
    optimizer = build(network.parameters()) if given else None
    with captured(network, tmp_path, optimizer, loader=loader if given else None, strict=True, **facts):
        train(network, optimizer or build(network.parameters()), loader, epochs=2)
    made = read_capture(tmp_path).record
    assert (made.optimizer, round(made.learning_rate, 6), made.model) == (text, 0.1, MODEL)
    assert (made.image_shape, made.classes, made.batch_size) == ((1, 8, 8), 5, 3)
    assert (made.local_steps, made.examples, made.epochs, made.frozen) == (6, 7, 2, ())


@pytest.mark.parametrize(
    ("how", "epochs", "expected"),
    [
        ({}, 1, {"local_steps": 3, "examples": 7, "epochs": 1, "batch_size": 3}),
        ({"drop_last": True}, 3, {"local_steps": 6, "examples": 7, "epochs": 3, "batch_size": 3}),
        ({"count": 6}, 2, {"local_steps": 4, "examples": 6, "epochs": 2, "batch_size": 3}),
        ({"size": 20}, 2, {"local_steps": 2, "examples": 7, "epochs": 2, "batch_size": 7}),
    ],
)
def test_passes_and_batches_are_counted(tmp_path: Path, how: Any, epochs: int, expected: dict[str, Any]) -> None:
    network, loader = client(**how)
    optimizer = SGD(network.parameters(), 0.1)
    with captured(network, tmp_path, optimizer, strict=True):
        train(network, optimizer, loader, epochs)
    made = read_capture(tmp_path).record
    assert {name: getattr(made, name) for name in expected} == expected


def micro(network: Net, loader: Any, keep: Any, take: Any) -> None:
    """The loader's batches are halved for memory."""
    for images, labels in loader:
        for half in (images[:2], labels[:2]), (images[2:], labels[2:]):
            keep(*half)
            (loss(network, *half) / 2).backward()
        take()


def patches(network: Net, loader: Any, keep: Any, take: Any) -> None:
    """As MONAI's crops: an item of the loader is several images."""
    for images, labels in loader:
        crops = images.repeat(3, 1, 1, 1), labels.repeat(3)
        keep(*crops)
        loss(network, *crops).backward()
        take()


def partly(network: Net, loader: Any, keep: Any, take: Any) -> None:
    for images, labels in loader:
        keep(images[:1], labels[:1])
        loss(network, images[:1], labels[:1]).backward()
        take()


def both_views(network: Net, loader: Any, keep: Any, take: Any) -> None:
    for images, labels in loader:
        views = (images, labels), (images.flip(3), labels)
        for one in views:
            keep(*one)
        torch.stack([loss(network, *one) for one in views]).sum().backward()
        take()


def every_second(network: Net, loader: Any, keep: Any, take: Any) -> None:
    """Over two passes of two batches, so that one batch is trained on twice."""
    for _ in range(2):
        for number, batch in enumerate(loader):
            if number == 0:
                keep(*batch)
                loss(network, *batch).backward()
                take()


def in_pairs(network: Net, loader: Any, keep: Any, take: Any, *, passes: int = 1, added: bool = False) -> None:
    """A batch that has no other at the end makes no step."""
    number = 0
    for _ in range(passes):
        for batch in loader:
            keep(*batch)
            (loss(network, *batch) / (1 if added else 2)).backward()
            number += 1
            if number % 2 == 0:
                take()


def after_validation(network: Net, loader: Any, keep: Any, take: Any) -> None:
    """Whose loader is under way as well when the first step is taken, and has given one batch."""
    other = iter(DataLoader(data(30), 15))
    next(other)
    in_pairs(network, loader, keep, take)
    next(other)


def validated(network: Net, loader: Any, keep: Any, take: Any) -> None:
    for batch in loader:
        keep(*batch)
        loss(network, *batch).backward()
        take()
        with torch.no_grad():
            for images, _ in DataLoader(data(8), 4):
                network(images)


def loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network(images), labels)


NOTHING: dict[str, Any] = {"examples": None, "epochs": None, "accumulate": 1, "accumulate_sum": False}


@pytest.mark.parametrize(
    ("training", "count", "size", "steps", "expected"),
    [
        (micro, 8, 4, 2, {"batch_size": 2, "accumulate": 2}),
        (patches, 8, 4, 2, {"batch_size": 12}),
        (patches, 6, 4, 2, {"batch_size": 12, "examples": 18, "epochs": 1}),
        (partly, 8, 4, 2, {"batch_size": 1}),
        (both_views, 8, 4, 2, {"batch_size": 4, "accumulate": 2, "accumulate_sum": True}),
        (every_second, 8, 4, 2, {"batch_size": 4}),
        (every_second, 7, 4, 2, {"batch_size": 4}),
        (in_pairs, 8, 4, 1, {"batch_size": 4, "examples": 8, "epochs": 1, "accumulate": 2}),
        (partial(in_pairs, passes=3), 12, 4, 4, {"batch_size": 4, "examples": 12, "accumulate": 2}),
        (partial(in_pairs, passes=2, added=True), 8, 4, 2,
         {"batch_size": 4, "examples": 8, "epochs": 2, "accumulate": 2, "accumulate_sum": True}),
        (after_validation, 8, 4, 1, {"batch_size": 4, "examples": 8, "epochs": 1, "accumulate": 2}),
        (validated, 8, 4, 2, {"batch_size": 4, "examples": 8, "epochs": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [True, False])
def test_what_went_through_the_network_counts(
    tmp_path: Path, training: Callable[..., None], count: int, size: int, steps: int, expected: Any, given: bool
) -> None:
    """And of a loader what agrees with that. Of the truth is kept what made steps."""
    network, loader = client(count, size)
    optimizer = SGD(network.parameters(), 0.1)

    def take() -> None:
        optimizer.step()
        optimizer.zero_grad()

    with captured(network, tmp_path, loader=loader if given else None, strict=True) as capture:
        training(network, loader, capture.batch, take)
    made = read_capture(tmp_path)
    expected = NOTHING | expected | {"local_steps": steps}
    assert {name: getattr(made.record, name) for name in expected} == expected
    assert made.truth is not None and made.truth.shapes["labels"] == (made.record.truths,)


@pytest.mark.parametrize("given", [True, False])
def test_passes_that_end_early_are_refused_where_batches_are_not_alike(tmp_path: Path, given: bool) -> None:
    network, loader = client(11, 4)
    optimizer = SGD(network.parameters(), 0.1)
    with (
        pytest.raises(UsageError, match=r"sizes, such as 4 and 3, and make no whole passes; train .* with drop_last$"),
        captured(network, tmp_path, loader=loader if given else None, strict=True),
    ):
        for batch in [*loader, *loader][:5]:
            step(network, optimizer, *batch)


class Stream(IterableDataset[Any]):
    """Without a length."""

    def __iter__(self) -> Any:
        return iter(data(7))


def test_a_loader_without_a_length_is_read_from_its_batches(tmp_path: Path) -> None:
    network, _ = client()
    loader, optimizer = DataLoader(Stream(), 3), SGD(network.parameters(), 0.1)
    with captured(network, tmp_path, optimizer, loader=loader, strict=True):
        train(network, optimizer, loader, 2)
    made = read_capture(tmp_path).record
    assert (made.local_steps, made.batch_size, made.examples, made.epochs) == (6, 3, 7, 2)


def test_what_is_frozen_or_left_out_of_the_optimizer_is_named(tmp_path: Path) -> None:
    network, loader = client()
    network.body[0].requires_grad_(False)
    optimizer = SGD(network.head.parameters(), 0.1)
    with captured(network, tmp_path, optimizer, strict=True):
        train(network, optimizer, loader)
    assert read_capture(tmp_path).record.frozen == tuple(
        f"body.{one}" for one in ("0.weight", "0.bias", "1.weight", "1.bias")
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_steps_that_a_scaler_skips_are_not_counted(tmp_path: Path, kind: type[SGD | Adam], fused: bool) -> None:
    """A fused optimizer counts them itself, and takes that back."""
    network, loader = client(6)
    optimizer, scaler = kind(network.parameters(), 0.1, fused=fused), torch.amp.GradScaler("cpu", init_scale=2.0)
    with captured(network, tmp_path, optimizer, strict=True):
        for number, (images, labels) in enumerate([*loader] * 2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images), labels)
            scaler.scale(loss * float("inf") if number == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
    made = read_capture(tmp_path).record
    assert (made.local_steps, made.batch_size) == (3, 3)


@pytest.mark.parametrize(
    ("dtype", "told"), [(torch.float32, None), (torch.float16, "float16"), (torch.bfloat16, "bfloat16")]
)
def test_what_is_given_joins_what_is_read(tmp_path: Path, dtype: torch.dtype, told: str | None) -> None:
    network, loader = client(6)
    optimizer, before = Adam(network.parameters(), 0.1), copy.deepcopy(network)
    with captured(network, tmp_path, optimizer, strict=True, clip_grad_norm=2.0, fedprox=0.1, model="m:make"):
        train(network, optimizer, loader)
        network.to(dtype)  # as it is sent
    made = read_capture(tmp_path).record
    assert (made.optimizer, made.model) == ("adam:clip_grad_norm=2.0,fedprox=0.1", "m:make")
    assert (made.clip_grad_norm, made.fedprox, made.dtype) == (2.0, 0.1, told)
    assert read_capture(tmp_path).before.shapes == {name: tuple(one.shape) for name, one in before.state_dict().items()}


def test_optimizers_that_were_there_before_are_read_from_the_first_step(tmp_path: Path) -> None:
    """As a long-lived client of a framework has them."""
    network, loader = client()
    optimizer = SGD(network.parameters(), 0.1, momentum=0.9)
    with Round(tmp_path, strict=True) as round_, Watch(everywhere=True) as watch:
        trainer = Thread(target=train, args=(network, optimizer, loader, 2))
        trainer.start()
        trainer.join()
        arrays = network.state_dict()
        round_.keep(watch, {}, arrays, after=arrays)
    made = read_capture(tmp_path).record
    assert (made.local_steps, made.batch_size, made.examples, made.epochs) == (6, 3, 7, 2)
    assert (made.image_shape, made.state, made.optimizer) == ((1, 8, 8), "new", "sgd:momentum=0.9")


class DPOptimizer:
    """As Opacus wraps one, whose own step it calls."""

    noise_multiplier, max_grad_norm, expected_batch_size = 1.5, 2.0, 3

    def __init__(self, optimizer: Optimizer) -> None:
        self.original_optimizer = optimizer

    def zero_grad(self) -> None:
        self.original_optimizer.zero_grad()

    def step(self) -> None:
        self.original_optimizer.step()


class DPOther(DPOptimizer):
    """One of those that clip in another way."""


def test_a_private_optimizer_is_declared(tmp_path: Path) -> None:
    for kind, place in ((DPOptimizer, "known"), (DPOther, "other")):
        network, loader = client(3)
        optimizer: Any = kind(SGD(network.parameters(), 0.1))
        with captured(network, tmp_path / place):
            train(network, optimizer, loader)
    made = read_capture(tmp_path / "known").record
    assert made.defense == Declared(name="make_private", settings={"noise_multiplier": 1.5, "max_grad_norm": 2.0})
    assert made.expected_batch_size == 3
    with pytest.raises(UsageError, match="how DPOther changes its steps is not known; give the defense"):
        read_capture(tmp_path / "other")


class Managed(DPOptimizer):
    """As Opacus' BatchMemoryManager makes one: every second batch takes a step, and sums stay until then."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.summed, self.batches = None, 0

    def weights(self) -> list[Any]:
        return self.original_optimizer.param_groups[0]["params"]

    def zero_grad(self) -> None:
        super().zero_grad()
        for one in self.weights() if self.batches % 2 == 0 else ():
            one.summed_grad = None

    def step(self) -> None:
        self.batches += 1
        for one in self.weights():
            one.summed_grad = one.grad.clone() + (0 if getattr(one, "summed_grad", None) is None else one.summed_grad)
            one.grad = one.summed_grad.clone()
        if self.batches % 2 == 0:
            self.original_optimizer.step()


def test_parts_of_a_private_batch_are_one_batch(tmp_path: Path) -> None:
    """Whose sum is divided by the size that is expected of all of it, once."""
    network, loader = client(12, 3)
    kind: Any = type("DPOptimizer", (Managed,), {"expected_batch_size": 6})
    with captured(network, tmp_path):
        train(network, kind(SGD(network.parameters(), 0.1)), loader)
    made = read_capture(tmp_path).record
    assert (made.batch_size, made.expected_batch_size, made.local_steps) == (6, 6, 2)
    assert (made.accumulate, made.accumulate_sum, made.loss_scale) == (1, False, 1.0)


def test_batches_that_a_private_optimizer_adds_up_are_one_batch(tmp_path: Path) -> None:
    """It divides by their number too."""
    network, loader = client(6, 3)
    kind: Any = type("DPOptimizer", (DPOptimizer,), {"expected_batch_size": 3, "accumulated_iterations": 2})
    optimizer = kind(SGD(network.parameters(), 0.1))
    with captured(network, tmp_path):
        for images, labels in loader:
            loss(network, images, labels).backward()
        optimizer.step()
    made = read_capture(tmp_path).record
    assert (made.batch_size, made.expected_batch_size, made.accumulate, made.accumulate_sum) == (6, 6, 1, False)


@pytest.mark.parametrize(
    ("summed", "reduction", "said"),
    [
        (False, "mean", ""),
        (True, "mean", "its loss is 3 times the mean"),
        (False, "sum", "does not divide by the batch"),
    ],
)
def test_a_private_optimizer_is_of_means(tmp_path: Path, summed: bool, reduction: str, said: str) -> None:
    """It may be given itself, as torch's optimizer that it is."""
    network, loader = client(3)
    kind: Any = type("DPOptimizer", (DPOptimizer, Optimizer), {"loss_reduction": reduction})
    optimizer = kind(SGD(network.parameters(), 0.1))
    with captured(network, tmp_path, optimizer):
        for images, labels in loader:
            (loss(network, images, labels) * (len(images) if summed else 1)).backward()
            optimizer.step()
    assert said in str(json.loads((tmp_path / "capture.json").read_text()).get("not_captured", ""))
    if not said:
        assert read_capture(tmp_path).record.expected_batch_size == 3


def weights(network: nn.Module) -> list[Tensor]:
    return [one.detach().nan_to_num(7.0) for one in network.state_dict().values()]


def clumsy(network: Net, loader: Any) -> None:
    """Everything that a training may do with its network while it is watched."""
    optimizer = Adam(network.parameters(), 0.01)
    train(network, optimizer, loader, 2)
    copied = copy.deepcopy(network)
    copied(next(iter(loader))[0])
    held = io.BytesIO()
    torch.save(network, held)
    assert b"harness" not in held.getvalue()


def assigning(network: Net, loader: Any) -> None:
    """Nothing is added to gradients that are put in their place, two passes long."""
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in [*loader] * 2:
        made = torch.autograd.grad(loss(network, images, labels), list(network.parameters()))
        for weight, gradient in zip(network.parameters(), made, strict=True):
            weight.grad = gradient
        optimizer.step()


def odd(network: Net, loader: Any) -> None:
    train(network, torch.optim.Adagrad(network.parameters(), 0.01), loader)


def apart(network: Net, loader: Any) -> None:
    groups = [{"params": network.head.parameters()}, {"params": network.body.parameters(), "momentum": 0.3}]
    train(network, SGD(groups, 0.1), loader)


def asleep(network: Net, loader: Any) -> None:
    groups = [{"params": network.head.parameters()}, {"params": network.body.parameters(), "lr": 0.0}]
    train(network, SGD(groups, 0.1), loader)


def dropping(network: Net, loader: Any) -> None:
    """Which is set once the capture has begun."""
    network.body[3] = nn.Dropout(0.5)
    train(network, SGD(network.parameters(), 0.1), loader)


def changed(network: Net, loader: Any) -> None:
    optimizer = SGD(network.parameters(), 0.1, momentum=0.5)
    train(network, optimizer, loader)
    optimizer.param_groups[0]["momentum"] = 0.9
    train(network, optimizer, loader)


def thawed(network: Net, loader: Any) -> None:
    optimizer = SGD(network.head.parameters(), 0.1)
    train(network, optimizer, loader)
    optimizer.add_param_group({"params": network.body.parameters()})
    train(network, optimizer, loader)


def two(network: Net, loader: Any) -> None:
    for part in (network.head, network.body):
        train(network, SGD(part.parameters(), 0.1), loader)


def two_that_remember(network: Net, loader: Any) -> None:
    for part in (network.head, network.body):
        train(network, SGD(part.parameters(), 0.1, momentum=0.9), loader)


def uneven(network: Net, loader: Any) -> None:
    optimizer = SGD(network.parameters(), 0.1)
    for size in (3, 2, 3):
        step(network, optimizer, *data(7)[:size])


def one_rate(network: Net, loader: Any) -> None:
    """A schedule of one of two groups."""
    groups = [{"params": network.head.parameters()}, {"params": network.body.parameters()}]
    optimizer = SGD(groups, 0.1)
    train(network, optimizer, loader)
    optimizer.param_groups[0]["lr"] = 0.05
    train(network, optimizer, loader)


def warm(network: Net, loader: Any) -> None:
    """The first rate of a warm-up is 0."""
    optimizer = SGD(network.parameters(), 0.0)
    train(network, optimizer, loader)


def diverged(network: Net, loader: Any) -> None:
    train(network, SGD(network.parameters(), 1e30), loader, 2)


def lost(network: Net, loader: Any) -> None:
    """A loss that is no number."""
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in loader:
        (loss(network, images, labels) * torch.nan).backward()
        optimizer.step()


def of_its_own(network: Net, loader: Any) -> None:
    """As libraries name theirs."""
    train(network, type("SGD", (SGD,), {})(network.parameters(), 0.1), loader)


def piled_up(network: Net, loader: Any) -> None:
    """Nobody calls zero_grad."""
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in loader:
        loss(network, images, labels).backward()
        optimizer.step()


def left_over(network: Net, loader: Any) -> None:
    """From before the first step."""
    network.head(torch.ones(1, 72)).sum().backward()
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in loader:
        loss(network, images, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def projected(network: Net, loader: Any) -> None:
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in loader:
        step(network, optimizer, images, labels)
        network.head.weight.data.clamp_(-0.05, 0.05)


def perturbed(network: Net, loader: Any) -> None:
    """A step of the gradient at other weights, as in sharpness-aware minimization."""
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in loader:
        optimizer.zero_grad()
        network.head.weight.data.add_(0.1)
        loss(network, images, labels).backward()
        network.head.weight.data.sub_(0.1)
        optimizer.step()


def decayed(network: Net, loader: Any) -> None:
    """By a hook of the optimizer's own, which comes before those of who looks on."""
    optimizer = SGD(network.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: network.head.weight.data.mul_(0.9))
    train(network, optimizer, loader)


def forgetful(network: Net, loader: Any) -> None:
    """Every pass begins without what the optimizer kept."""
    optimizer = SGD(network.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        train(network, optimizer, loader)
        optimizer.state.clear()


def damped(network: Net, loader: Any) -> None:
    optimizer = Adam(network.parameters(), 0.01)
    train(network, optimizer, loader)
    optimizer.state[network.head.weight]["exp_avg"].mul_(0.1)
    train(network, optimizer, loader)


def by_turns(network: Net, loader: Any) -> None:
    """A step leaves out one part, whose gradient was there."""
    optimizer = SGD(network.parameters(), 0.1)
    for number, (images, labels) in enumerate([*loader] * 2):
        optimizer.zero_grad()
        loss(network, images, labels).backward()
        (network.head if number % 2 else network.body).zero_grad()
        optimizer.step()


def seldom(network: Net, loader: Any) -> None:
    """A weight that no pass of some steps needs, and that momentum does not move then."""
    optimizer, network.bias = SGD(network.parameters(), 0.1, momentum=0.9), nn.Parameter(torch.zeros(10))
    optimizer.param_groups[0]["params"].append(network.bias)
    for number, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        (loss(network, images, labels) + (0 if number else (0.0 * network.bias).sum())).backward()
        optimizer.step()


def emptied(network: Net, loader: Any) -> None:
    optimizer = SGD(network.parameters(), 0.1)
    for images, labels in loader:
        loss(network, images, labels).backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()


def averaged(network: Net, loader: Any) -> None:
    """What is sent are not the last weights."""
    first = copy.deepcopy(network.state_dict())
    train(network, SGD(network.parameters(), 0.1), loader)
    network.load_state_dict({name: (one + first[name]) / 2 for name, one in network.state_dict().items()})


def mirrored(network: Net, loader: Any) -> None:
    """What is sent has every norm of the last weights."""
    train(network, SGD(network.parameters(), 0.1), loader)
    with torch.no_grad():
        network.head.weight.copy_(network.head.weight.flip(1))


def steadied(network: Net, loader: Any) -> None:
    network.eval()
    train(network, SGD(network.parameters(), 0.1), loader)


def last_alone(network: Net, loader: Any) -> None:
    """Two batches make a step, and the third one by itself."""
    optimizer = SGD(network.parameters(), 0.1)
    for number, (images, labels) in enumerate(loader):
        loss(network, images, labels).backward()
        if number > 0:
            optimizer.step()
            optimizer.zero_grad()


def still(network: Net, loader: Any) -> None:
    """Nothing trains."""


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (clumsy, None), (assigning, None), (odd, "'Adagrad' is none whose steps are known"),
        (apart, "groups of parameters with another momentum"),
        (asleep, "has learning rate 0; freeze it"), (dropping, "its layer 'body.3' drops out units, and nobody"),
        (changed, "momentum of SGD changed"), (thawed, "other parameters were trained later"),
        (two, "2 optimizers took steps"), (uneven, "of different sizes"),
        (one_rate, "groups of parameters changed apart"), (warm, "lr must be above 0"),
        (diverged, "holds NaN or infinity: its training diverged; capture another round"),
        (lost, "its loss became NaN or infinity: its training diverged"),
        (still, "no optimizer of torch took a step in it; train in the captured part"),
        (of_its_own, "SGD' is none whose steps are known"), (piled_up, "gradients were there before the first batch"),
        (left_over, "gradients were there before the first batch"), (projected, "weights were changed beside"),
        (perturbed, "weights were changed beside"), (averaged, "weights were changed beside"),
        (mirrored, "weights were changed beside"),
        (decayed, "weights were changed beside"), (forgetful, "optimizer's state was changed between two steps"),
        (damped, "optimizer's state was changed between"), (by_turns, "gradients were taken away before a step"),
        (seldom, "a weight had no gradient in some of its steps"), (emptied, "gradients were changed before a step"),
        (steadied, "its layer 'body.1' normalises as in eval()"),
        (last_alone, "follow different numbers of batches; train the captured round with as many"),
    ],
)  # fmt: skip
def test_no_training_is_changed_or_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, training: Callable[..., None], said: str | None
) -> None:
    """To the bit, random numbers too; what cannot be judged is a line, and stands in the capture's place."""
    made = []
    for watched in (False, True):
        network, loader = client(shuffle=True)
        if watched:
            with captured(network, tmp_path):
                training(network, loader)
        else:
            training(network, loader)
        made.append([*weights(network), torch.rand(3)])
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    if said is None:
        assert lines == [] and read_capture(tmp_path).record.local_steps == 6
        return
    assert len(lines) == 1 and said in lines[0] and "\n" not in lines[0]
    with pytest.raises(UsageError, match=r"was not captured because .*; leave it out of the command, or ") as problem:
        read_capture(tmp_path)
    assert said in str(problem.value)
    network, loader = client(shuffle=True)
    with pytest.raises((UsageError, ValidationError), match=said), captured(network, tmp_path / "strict", strict=True):
        training(network, loader)


def test_what_each_of_two_optimizers_keeps_is_no_second_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, loader = client()
    with captured(network, tmp_path):
        two_that_remember(network, loader)
    (line,) = caplog.messages
    assert line.endswith("is not captured because 2 optimizers took steps; train the captured round with one")


@pytest.mark.parametrize(
    ("given", "build", "said"),
    [
        ("sgd:lr=0.1", Adam, "given as sgd:lr=0.1, and the training had adam with lr=0.1"),
        ("adam:lr=0.2", Adam, "given as adam:lr=0.2, and the training had adam with lr=0.1"),
        ({"name": "Adam", "betas": [0.5, 0.9]}, Adam, "and the training had adam with lr=0.1"),
        ("adam:clip_grad_norm=5", Adam, None), ({"name": "Adam", "lr": 0.1}, Adam, None),
        ("sgd", type("SGD", (SGD,), {}), f"given as sgd, and optimizer '{__name__}.SGD' is none"),
    ],
)  # fmt: skip
def test_an_optimizer_that_is_given_counts_and_the_difference_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: Any, build: Any, said: str | None
) -> None:
    """Also where its class is nobody's here; a learning rate that it lacks is read."""
    network, loader = client()
    with captured(network, tmp_path, given):
        train(network, build(network.parameters(), 0.1), loader)
    name = given["name"] if isinstance(given, dict) else given.partition(":")[0]
    assert read_capture(tmp_path).record.optimizer.startswith(name.lower())
    assert [str(said) in one for one in caplog.messages] == ([True] if said else [])


def test_batches_that_their_loss_leaves_out_are_no_truth(tmp_path: Path) -> None:
    network, loader = client(9)
    optimizer = SGD(network.parameters(), 0.1)
    with captured(network, tmp_path, strict=True) as capture:
        for number, (images, labels) in enumerate(loader):
            capture.batch(images, labels)
            optimizer.zero_grad()
            made = loss(network, images, labels)
            if number != 1:
                made.backward()
                optimizer.step()
    kept = read_capture(tmp_path).truth
    assert kept is not None
    assert torch.equal(torch.from_numpy(kept["labels"]), torch.arange(9)[[0, 1, 2, 6, 7, 8]] % 5)


def test_batch_norm_counts_in_batches_that_make_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A validation that keeps its gradients is none of them; and a factory may have the layer so."""
    network, loader = client()
    optimizer = SGD(network.parameters(), 0.1)
    for given in (None, "m:make"):
        with captured(network, tmp_path / str(given), strict=True, **({"model": given} if given else {})):
            train(network.train(given is None), optimizer, loader)
            network.eval()(next(iter(loader))[0])
    assert len(caplog.messages) == 1 and "its layer 'body.1' normalises as in eval()" in caplog.text


def test_a_schedule_is_read_as_it_was_used(tmp_path: Path) -> None:
    network, loader = client()
    optimizer = SGD(network.parameters(), 0.5)
    halved = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with captured(network, tmp_path, optimizer, halved, strict=True):
        train(network, optimizer, loader, 2, halved)
    assert read_capture(tmp_path).record.schedule == (0.5,) * 3 + (0.25,) * 3


def test_a_warm_up_begins_at_0(tmp_path: Path) -> None:
    """Also of an optimizer that is given, and looked at before the first rate above 0 is there."""
    network, loader = client()
    optimizer = SGD(network.parameters(), 0.4, momentum=0.9)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 4)
    with captured(network, tmp_path, optimizer, warm_up, strict=True):
        for _ in range(3):
            train(network, optimizer, loader, 1, warm_up)
    made = read_capture(tmp_path).record
    assert made.schedule == (0.0,) * 3 + (0.1,) * 3 + (0.2,) * 3
    assert (made.learning_rate, made.state) == (0.1, "new")


SUMS: list[dict[str, Any]] = [{}, {"accumulate_sum": True}, {"accumulate_sum": True, "accumulate": 2}]


@pytest.mark.parametrize("facts", SUMS)
def test_sums_of_batches_can_be_given(tmp_path: Path, caplog: pytest.LogCaptureFixture, facts: Any) -> None:
    """An output that is no row of scores for each example tells nothing of the loss, which is told, unless given."""
    network, loader = client(8, 4)
    whole = nn.Sequential(network, nn.Unflatten(1, (1, 5)))
    optimizer = SGD(whole.parameters(), 0.1)
    with captured(whole, tmp_path, optimizer, model="m:make", classes=5, loss_scale=1.0, **facts):
        for images, labels in loader:
            nn.functional.cross_entropy(whole(images)[:, 0], labels).backward()
        optimizer.step()
    made = read_capture(tmp_path).record
    assert (made.accumulate, made.accumulate_sum) == (2, bool(facts))
    assert [one.getMessage() for one in caplog.records] == (
        [] if facts else ["harness: whether the batches of a step are added up is not seen: taken as a mean; give "
                          "accumulate_sum if it is not so"]
    )  # fmt: skip


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("scale", [2.0, 2.0**12])
@pytest.mark.parametrize("logarithms", [True, False])
def test_sums_of_batches_are_read(tmp_path: Path, added: bool, scale: float, logarithms: bool) -> None:
    """Also through a gradient scaler, and of a network that ends in a logarithmic softmax."""
    network, loader = client(8, 4)
    outputs = nn.LogSoftmax(1) if logarithms else nn.Identity()
    whole = nn.Sequential(network, outputs)
    optimizer, scaler = SGD(whole.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=scale)
    with captured(whole, tmp_path, optimizer, strict=True, model="m:make"):
        for images, labels in loader:
            made = nn.functional.nll_loss(whole(images).log_softmax(1), labels)
            scaler.scale(made if added else made / 2).backward()
        scaler.step(optimizer)
    made = read_capture(tmp_path).record
    assert (made.accumulate, made.accumulate_sum) == (2, added)


class Trained(Net):
    """As transformers' networks answer."""

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:  # pyright: ignore
        made = super().forward(images)
        return {"loss": nn.functional.cross_entropy(made, labels), "logits": made}


def test_a_network_that_answers_with_its_loss_is_read(tmp_path: Path) -> None:
    _, loader = client(8, 4)
    network = Trained()
    optimizer = SGD(network.parameters(), 0.1)
    with captured(network, tmp_path, strict=True, model=MODEL):
        for images, labels in loader:
            network(images=images, labels=labels)["loss"].backward()
        optimizer.step()
    made = read_capture(tmp_path).record
    assert (made.classes, made.batch_size, made.accumulate, made.accumulate_sum) == (5, 4, 2, True)


def test_a_full_disk_leaves_no_earlier_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    for place in ("an earlier round", "this one"):
        network, loader = client()
        if place == "this one":
            monkeypatch.setattr("harness.results.atomic._write_then_rename", full)
        with captured(network, tmp_path):
            train(network, SGD(network.parameters(), 0.1), loader)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="is no capture"):
        read_capture(tmp_path)


GIVEN = {"model": "m:make", "image_shape": [1, 8, 8], "classes": 5, "learning_rate": 0.1, "batch_size": 2}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"accumulate_sum": True}, "accumulate_sum is of several batches; give their number as accumulate; correct"),
        ({"optimizer": {"name": "SGD", "foo": 1}}, "optimizer 'SGD': foo: .* write for example"),
        ({"optimizer": {"name": "SGD", "maximize": True}}, "maximize=True cannot be judged; leave it out in"),
        ({"optimizer": {"name": "Adam"}, "state": "carried"}, r"make a new optimizer for the captured round \(.*\);"),
        ({"optimizer": "sgd:weight_decay=1e30"}, "weight_decay 1e.30 at learning_rate 0.1 makes weights grow .*;"),
        ({"fedprox": 1e30, "local_steps": 2}, "fedprox 1e.30 at learning_rate 0.1 makes weights grow .*correct one"),
        ({"label_smoothing": 0.1}, "label_smoothing makes a loss that no attack plays; capture a round with the mean"),
        ({"class_weights": [1, 2]}, "class_weights makes a loss that no attack plays; capture a round with"),
        ({"lr": 0.1}, "'lr': is not known here; correct its name, or leave it out"),
        ({"frozen": "weight"}, "'frozen': write a list"),
        ({"image_shape": [8, 8]}, r"'image_shape': write \[channels, height, width\], such as \[1, 28, 28\]"),
        ({"schedule": [0, 0], "local_steps": 2}, "all rates of the schedule are 0, .*give those that were used"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_record_is_named_with_its_fix(tmp_path: Path, facts: Any, said: str) -> None:
    (tmp_path / "capture.json").write_text(json.dumps(GIVEN | facts))
    with pytest.raises(UsageError, match=said) as told:
        read_capture(tmp_path)
    assert "\n" not in str(told.value) and "None" not in str(told.value)


def test_a_reason_is_kept_with_what_is_known_and_makes_a_capture_when_it_is_taken_away(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))  # of no class that names it
    with captured(network, tmp_path, strict=False, model="mlp") as capture:
        train(network, SGD(network.parameters(), 0.1), client()[1])
        capture.batch(*data(7)[:2])
    kept = read_capture(tmp_path).record
    with captured(network, tmp_path / "1", image_shape=(1, 8, 8), classes=5):
        pass
    assert "'model'" not in (tmp_path / "1" / "capture.json").read_text()
    facts = json.loads((tmp_path / "capture.json").read_text())
    (tmp_path / "capture.json").write_text(json.dumps({"not_captured": "it rains"} | facts))
    with pytest.raises(UsageError, match=r"because it rains; .* take not_captured away"):
        read_capture(tmp_path)
    (tmp_path / "capture.json").write_text(json.dumps(facts))
    assert read_capture(tmp_path).record == kept


REFUSED: list[tuple[Callable[[Net], dict[str, Any]], str]] = [
    (lambda network: {"optimizer": torch.optim.Adagrad(network.parameters())}, "'Adagrad' is none whose steps"),
    (lambda network: {"optimizer": remembering(network)}, "was carried over from an earlier round"),
    (lambda network: {"optimizer": remembering(network, SGD(network.parameters(), 0.1, momentum=0.9)),
                      "client": "a", "epochs": 2}, "carried over from an earlier round, which several local steps"),
    (lambda network: {"optimizer": SGD([{"params": [network.head.bias], "momentum": 0.3},
                                        {"params": [network.head.weight]}], 0.1)}, "groups of parameters"),
    (lambda network: {"optimizer": SGD(network.parameters(), 0.1), "scheduler": torch.optim.lr_scheduler.StepLR(
        SGD(network.parameters(), 0.1), 1)}, "the scheduler is of another optimizer"),
    (lambda network: {"epochs": 2, "examples": 4, "learning_rate": 0.1, "batch_size": 2, "local_steps": 3,
                      "model": "m:make", "image_shape": (1, 8, 8), "classes": 5}, "are 4 local_steps, and 3 are"),
    (lambda network: cycling(SGD(network.parameters(), 0.1, momentum=0.9)), "give it cycle_momentum=False"),
    (lambda network: {"batch_size": 0}, "batch_size"),
    (lambda network: {"learning_rate": 0.1}, "model"),
]  # fmt: skip


def cycling(optimizer: Optimizer) -> dict[str, Any]:
    return {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, 6)}


def remembering(network: Net, optimizer: Optimizer | None = None) -> Optimizer:
    optimizer = optimizer or Adam(network.parameters(), 0.1)
    step(network, optimizer, *data(7)[:3])
    return optimizer


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_refusals_come_before_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: Callable[[Net], dict[str, Any]], said: str
) -> None:
    network, loader = client()
    made, trained = given(network), False
    strictly = captured(network, tmp_path / "strict", strict=True, **made)
    with pytest.raises((UsageError, ValidationError), match=said), strictly:
        trained = True
    assert not trained
    with captured(network, tmp_path / "quiet", **made):
        assert said in caplog.text  # already
        train(network, made.get("optimizer") or SGD(network.parameters(), 0.1), loader)
    with pytest.raises(UsageError, match=said):
        read_capture(tmp_path / "quiet")
    assert len(caplog.records) == 1 and not (tmp_path / "quiet" / "after.npz").exists()


class Waves(nn.Module):
    """Of complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.waves, self.head = nn.Parameter(torch.ones(8, 5, dtype=torch.cfloat)), nn.Linear(64, 5)

    def forward(self, images: Tensor) -> Tensor:
        kept: Tensor = torch.fft.irfft2(torch.fft.rfft2(images) * self.waves, s=(8, 8))
        return self.head(kept.flatten(1))


def test_complex_weights_are_told_before_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = Waves()
    with captured(network, tmp_path / "0", image_shape=(1, 8, 8), classes=5):
        assert "its weight 'waves' is complex; let the network keep such a weight as two real ones" in caplog.text
    write_capture(
        tmp_path / "1", CaptureRecord(**GIVEN | {"model": "mlp"}), network.state_dict(), after=network.state_dict()
    )
    with pytest.raises(UsageError, match="'waves' holds complex64, no numbers that are read; let the network keep"):
        federations([read_capture(tmp_path / "1")], attacked=False)


@pytest.mark.parametrize("strict", [True, False])
def test_a_random_layer_is_told_before_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    """Once; the arrays are kept, for checks that need no gradient."""
    network, loader = client()
    network.body[3] = nn.Dropout(0.5)
    said = r"'body.3' drops out units, and nobody learns which; set its p to 0, or call its eval\(\)"
    if strict:
        with pytest.raises(UsageError, match=said), captured(network, tmp_path, strict=True):
            raise AssertionError("its training began")
        return
    with captured(network, tmp_path):
        assert len(caplog.records) == 1 and "drops out units" in caplog.text
        train(network, SGD(network.parameters(), 0.1), loader)
    assert len(caplog.records) == 1 and (tmp_path / "after.npz").exists()
    with pytest.raises(UsageError, match=said):
        read_capture(tmp_path)
    network.body[3].eval()
    with captured(network, tmp_path / "1", strict=True):
        train(network, SGD(network.parameters(), 0.1), loader)


class Counting(Net):
    """Keeps a mean of its outputs, which no layer of torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, images: Tensor) -> Tensor:
        made = super().forward(images)
        self.mean = 0.9 * self.mean + 0.1 * made.detach().mean(0)
        return made


def test_buffers_that_a_client_changes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network, (_, loader) = Counting(), client()
    with captured(network, tmp_path, strict=True, model=MODEL):
        train(network, SGD(network.parameters(), 0.1), loader)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.endswith("and its network changes its buffer 'mean' in a pass, and cannot be played so")


@pytest.mark.parametrize(
    ("fact", "value"), [("clip_grad_norm", 0.1), ("schedule", (0.1, 0.1, 0.2)), ("loss_scale", 4.0)]
)
def test_a_fact_that_the_training_lacks_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fact: str, value: Any
) -> None:
    network, loader = client()
    with captured(network, tmp_path, **{fact: value}):
        train(network, SGD(network.parameters(), 0.1), loader)
    assert any(f"{fact} is given as {value}, and the training had" in one for one in caplog.messages)


def test_groups_keep_their_rates_where_a_schedule_ends_at_0(tmp_path: Path) -> None:
    network, loader = client()
    groups = [{"params": network.head.parameters()}, {"params": network.body.parameters(), "lr": 0.05}]
    optimizer = SGD(groups, 0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    with captured(network, tmp_path, optimizer, cosine, strict=True):
        train(network, optimizer, loader, 2, cosine)
    (group,) = read_capture(tmp_path).record.groups
    assert optimizer.param_groups[0]["lr"] == 0 and group.learning_rate == pytest.approx(0.05)


def test_groups_of_parameters_have_rates_and_decays_of_their_own(tmp_path: Path) -> None:
    """Rates as beside the first above 0, in a schedule that scales them alike."""
    network, loader = client()
    groups = [
        {"params": [network.head.weight]}, {"params": [network.head.bias], "weight_decay": 0.0},
        {"params": network.body.parameters(), "lr": 0.05},
    ]  # fmt: skip
    optimizer = AdamW(groups, 0.1, weight_decay=0.2)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 2)
    with captured(network, tmp_path, optimizer, warm_up, strict=True):
        train(network, optimizer, loader, 3, warm_up)
    made = read_capture(tmp_path).record
    assert (made.schedule, made.optimizer) == ((0.0,) * 3 + (0.05,) * 3 + (0.1,) * 3, made.optimizer)
    told = [(one.parameters, one.learning_rate, one.weight_decay) for one in made.groups]
    body = tuple(f"body.{name}" for name, _ in network.body.named_parameters())
    assert told == [(("head.bias",), None, 0.0), (body, pytest.approx(0.025), None)]


def test_an_unfinished_round_is_marked_from_its_beginning(tmp_path: Path) -> None:
    """As a killed process leaves it; and one that ends with an error."""
    network, _ = client()
    (tmp_path / "after.npz").write_bytes(b"of an earlier round")
    with pytest.raises(ZeroDivisionError), captured(network, tmp_path):
        with pytest.raises(UsageError, match="did not end, or its process was killed"):
            read_capture(tmp_path)
        assert sorted(one.name for one in tmp_path.iterdir()) == [".lock", "capture.json"]
        raise ZeroDivisionError("by the client")
    with pytest.raises(UsageError, match=r"ended with an error \(ZeroDivisionError: by the client\)"):
        read_capture(tmp_path)


def test_two_clients_in_one_folder_do_not_mix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (first, loader), (second, _) = client(), client()
    with captured(first, tmp_path):
        with captured(second, tmp_path):
            train(second, SGD(second.parameters(), 0.5), loader)
        train(first, SGD(first.parameters(), 0.1), loader)
    assert read_capture(tmp_path).record.learning_rate == 0.1
    (line,) = [one.getMessage() for one in caplog.records]
    assert "another client is being captured" in line


@pytest.mark.parametrize("place", ["folder", "read-only", "disk", "end"])
def test_a_folder_that_cannot_be_written_breaks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    def read_only(*_: object) -> None:
        raise OSError(30, os.strerror(30))

    network, loader = client()
    folder = tmp_path / "0"
    if place == "folder":
        folder.write_text("no folder")
    elif place == "read-only":
        monkeypatch.setattr("harness.capture.loop.FileLock.acquire", read_only)
    elif place == "disk":
        monkeypatch.setattr("harness.results.atomic._write_then_rename", full)
    with captured(network, folder):
        train(network, SGD(network.parameters(), 0.1), loader)
        if place == "end":
            monkeypatch.setattr("harness.results.atomic._write_then_rename", full)
    assert len(caplog.records) == 1
    said = {
        "folder": "cannot be made (File exists); name another",
        "read-only": "cannot be written (Read-only file system); name another",
    }.get(place, "No space left on device")
    assert said in caplog.text
    with pytest.raises(UsageError):
        read_capture(folder)
