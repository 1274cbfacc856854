"""A clip of gradients in a client's own loop is read from their norms before and behind it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.capture import captured
from harness.judging.capture import read_capture
from harness.testing import digits

Change = Callable[[list[nn.Parameter]], object]


def make(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, classes))


def clip(bound: float, **how: Any) -> Change:
    return lambda weights: nn.utils.clip_grad_norm_(weights, bound, **how)


def noise(weights: list[nn.Parameter]) -> None:
    for one in weights:
        if one.grad is not None:
            one.grad += 0.1


def half(weights: list[nn.Parameter]) -> None:
    for one in weights:
        if one.grad is not None:
            one.grad /= 2


def uphill(weights: list[nn.Parameter]) -> None:
    """Of one layer, whose norm stays."""
    assert weights[0].grad is not None
    weights[0].grad.neg_()


def exchanged(weights: list[nn.Parameter]) -> None:
    assert weights[0].grad is not None
    weights[0].grad.copy_(weights[0].grad.flip(0))


# What happens before a step, batches that make one, the optimizer, and the bound that is read.
CHANGES: dict[str, tuple[Change, int, type[torch.optim.Optimizer], float | None]] = {
    "nothing": (lambda _: None, 1, torch.optim.SGD, None),
    "a clip": (clip(0.25), 1, torch.optim.SGD, 0.25),
    "a clip before Adam": (clip(0.125), 1, torch.optim.Adam, 0.125),
    "a clip of a mean": (clip(0.1), 2, torch.optim.SGD, 0.1),
    "a clip that is never reached": (clip(1e6), 1, torch.optim.SGD, None),
}  # fmt: skip
OTHERS: dict[str, Change] = {
    "noise": noise,
    "a division": half,
    "signs": uphill,
    "places": exchanged,
    "each value": lambda weights: nn.utils.clip_grad_value_(weights, 1e-3),
    "the largest": clip(1e-3, norm_type=torch.inf),
    "the first layer": lambda weights: nn.utils.clip_grad_norm_(weights[:1], 1e-3),
}


def trained(folder: Path, change: Change, each: int, kind: Any, **facts: Any) -> nn.Module:
    images, labels = (one.flatten(0, 1) for one in digits(1, 8))
    torch.manual_seed(0)
    network = make((1, 8, 8), 10)
    optimizer = kind(network.parameters(), lr=0.01)
    with captured(network, folder, optimizer, model=f"{__name__}:make", **facts):
        for number, (batch, truth) in enumerate(zip(images.split(2), labels.split(2), strict=True), 1):
            loss: Tensor = nn.functional.cross_entropy(network(batch), truth) / each
            loss.backward()
            if number % each == 0:
                change(list(network.parameters()))
                optimizer.step()
                optimizer.zero_grad()
    return network


@pytest.mark.parametrize(("change", "each", "kind", "bound"), CHANGES.values(), ids=CHANGES.keys())
def test_a_clip_is_read(
    change: Change, each: int, kind: Any, bound: float | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, change, each, kind)
    assert read_capture(tmp_path).record.clip_grad_norm == bound and caplog.messages == []


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS.keys())
def test_another_change_of_gradients_is_not_captured_unless_it_is_said(
    change: Change, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the truth would not explain what was sent, and an honest client would stand accused."""
    trained(tmp_path / "0", change, 1, torch.optim.SGD)
    with pytest.raises(UsageError, match="gradients were changed before a step, and not as clip_grad_norm_ does"):
        read_capture(tmp_path / "0")
    trained(tmp_path / "1", change, 1, torch.optim.SGD, fedprox=0.1)
    assert read_capture(tmp_path / "1").record.fedprox == 0.1
    (line,) = caplog.messages  # that the fact explains it is no warning
    assert "gradients were changed before a step" in line


def hooked(change: Callable[[Tensor], Tensor | None], network: nn.Module, _: torch.optim.Optimizer) -> None:
    for one in network.parameters():
        one.register_hook(change)


def before_step(change: Change, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights = list(network.parameters())
    optimizer.register_step_pre_hook(lambda *_: change(weights) and None)


CLAMP: Callable[[Tensor], Tensor] = lambda gradient: gradient.clamp(-1e-3, 1e-3)  # noqa: E731


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("hook", "bound", "said"),
    [
        (partial(hooked, lambda gradient: None), None, ""), (partial(hooked, CLAMP), None, "a hook on a weight"),
        (partial(hooked, torch.neg), None, "a hook on a weight"),
        (partial(before_step, clip(0.125)), 0.125, ""), (partial(before_step, half), None, "and not as clip_grad"),
        (partial(before_step, clip(1e6)), None, ""),
    ],
)  # fmt: skip
def test_hooks_that_change_gradients_are_seen(hook: Any, bound: Any, said: str, early: bool, tmp_path: Path) -> None:
    images, labels = (one.flatten(0, 1) for one in digits(1, 8))
    network = make((1, 8, 8), 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if early:
        hook(network, optimizer)
    with captured(network, tmp_path, optimizer, model=f"{__name__}:make"):
        if not early:
            hook(network, optimizer)
        for batch, truth in zip(images.split(2), labels.split(2), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch), truth).backward()
            optimizer.step()
    require(tmp_path, bound, said)


def require(folder: Path, bound: float | None, said: str) -> None:
    """A capture has this bound, or there is none for this reason."""
    if said:
        with pytest.raises(UsageError, match=said):
            read_capture(folder)
    else:
        assert read_capture(folder).record.clip_grad_norm == bound


def of_each_batch(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    for batch, truth in zip(images.split(2), labels.split(2), strict=True):
        (nn.functional.cross_entropy(network(batch), truth) / 2).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.125)


def asked(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Without ``backward()``."""
    weights = list(network.parameters())
    made = torch.autograd.grad(nn.functional.cross_entropy(network(images), labels), weights)
    for one, gradient in zip(weights, made, strict=True):
        one.grad = gradient
    nn.utils.clip_grad_norm_(weights, 0.125)


def thawed(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Layers that were still when the capture began."""
    network.requires_grad_()
    nn.functional.cross_entropy(network(images), labels).backward()
    nn.utils.clip_grad_norm_(network.parameters(), 0.125)


def by_hand(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    asked(network, images, labels)
    for one in network.parameters():
        one.grad = torch.ones_like(one)


@pytest.mark.parametrize(
    ("gradients", "bound", "said"),
    [
        (of_each_batch, None, "between two backward passes of one step"), (asked, 0.125, ""), (thawed, 0.125, ""),
        (by_hand, None, "and not as clip_grad_norm_ does"),
    ],
)  # fmt: skip
def test_a_clip_is_seen_however_gradients_are_made(gradients: Any, bound: Any, said: str, tmp_path: Path) -> None:
    images, labels = (one.flatten(0, 1) for one in digits(1, 8))
    network = make((1, 8, 8), 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    if gradients is thawed:
        network[1].requires_grad_(False)
    with captured(network, tmp_path, optimizer, model=f"{__name__}:make"):
        for batch, truth in zip(images.split(4), labels.split(4), strict=True):
            optimizer.zero_grad()
            gradients(network, batch, truth)
            optimizer.step()
    require(tmp_path, bound, said)


@pytest.mark.parametrize(("change", "bound"), [(half, None), (clip(0.125), 0.125), (clip(0.1234), 0.1234)])
def test_one_step_tells_a_clip_from_a_division(change: Change, bound: float | None, tmp_path: Path) -> None:
    images, labels = (one.flatten(0, 1) for one in digits(1, 4))
    network = make((1, 8, 8), 10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with captured(network, tmp_path, optimizer, model=f"{__name__}:make"):
        nn.functional.cross_entropy(network(images), labels).backward()
        change(list(network.parameters()))
        optimizer.step()
    require(tmp_path, bound, "" if bound else "and not as clip_grad_norm_ does")


def test_a_clip_behind_a_scaler_is_read(tmp_path: Path) -> None:
    images, labels = (one.flatten(0, 1) for one in digits(1, 4))
    network = make((1, 8, 8), 10)
    optimizer, scaler = torch.optim.SGD(network.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with captured(network, tmp_path, optimizer, model=f"{__name__}:make"):
        scaler.scale(nn.functional.cross_entropy(network(images), labels)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 0.25)
        scaler.step(optimizer)
        scaler.update()
    record = read_capture(tmp_path).record
    assert (record.clip_grad_norm, record.loss_scale) == (0.25, 1)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_clip_within_a_step_is_read(kind: Any, named: bool, tmp_path: Path) -> None:
    """Where the step itself asks for the gradients, as Lightning's does."""
    images, labels = (one.flatten(0, 1) for one in digits(1, 8))
    network, alone = make((1, 8, 8), 10), make((1, 8, 8), 10)
    alone.load_state_dict(network.state_dict())

    def train(network: nn.Module) -> None:
        optimizer = kind(network.parameters(), lr=0.01)
        for batch, truth in zip(images.split(2), labels.split(2), strict=True):

            def gradients(batch: Tensor = batch, truth: Tensor = truth) -> Tensor:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(network(batch), truth)
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 0.125)
                return loss.detach()

            assert float(optimizer.step(**{"closure": gradients}) if named else optimizer.step(gradients)) > 0

    with captured(network, tmp_path, model=f"{__name__}:make"):
        train(network)
    train(alone)
    record = read_capture(tmp_path).record
    assert (record.clip_grad_norm, record.loss_scale, record.local_steps, record.batch_size) == (0.125, 1, 4, 2)
    both = zip(network.state_dict().values(), alone.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in both)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_trainer_of_lightning_is_read(clip: float | None, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make((1, 8, 8), 10)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self.inner(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    images, labels = (one.flatten(0, 1) for one in digits(1, 16))
    data, module = torch.utils.data.TensorDataset(images, labels), Module()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, gradient_clip_val=clip,
        default_root_dir=tmp_path,
    )  # fmt: skip
    with captured(module.inner, tmp_path / "0", model=f"{__name__}:make"):
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
    record = read_capture(tmp_path / "0").record
    assert (record.optimizer, record.learning_rate, record.local_steps) == (
        "adam" + (f":clip_grad_norm={clip}" if clip else ""),
        1e-3,
        8,
    )
    assert (record.examples, record.epochs, record.batch_size, record.order) == (16, 2, 4, "reshuffled")
