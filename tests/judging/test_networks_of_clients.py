"""Networks of clients: which of their outputs is read, and which cannot be played, as is told while they train."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

from harness.base.errors import UsageError
from harness.capture import captured
from harness.judging.capture import read_capture


class Net(nn.Module):
    """A client's network, whose class takes no arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(), nn.Flatten())
        self.head = nn.Linear(2 * 6 * 6, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


MODEL = f"{Net.__module__}:Net()"


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    yield from zip(torch.rand(2, 4, 1, 8, 8, generator=random), torch.arange(8).view(2, 4) % 5, strict=True)


def train(call: Callable[[Tensor], Tensor], optimizer: Optimizer) -> None:
    for images, labels in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(call(images), labels).backward()
        optimizer.step()


class Features(Net):
    """Of what its logits are made, beside them."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        features = self.body(images)
        return features, self.head(features)


@dataclass
class Output:
    logits: Tensor


class Answers(Net):
    """With an object of its own."""

    def forward(self, images: Tensor) -> Output:  # pyright: ignore
        return Output(super().forward(images))


@pytest.mark.parametrize(
    ("kind", "logits"), [(Features, lambda made: made[1]), (Answers, lambda made: made.logits)]
)  # fmt: skip
def test_the_loss_of_one_output_of_several_is_read(tmp_path: Path, kind: type[Net], logits: Any) -> None:
    network = kind()
    optimizer = SGD(network.parameters(), 0.1)
    with captured(network, tmp_path / "0", model=MODEL):
        train(lambda images: logits(network(images)), optimizer)
    made = read_capture(tmp_path / "0").record
    assert (made.classes, made.batch_size, made.local_steps, made.loss_scale) == (5, 4, 2, 1)
    with captured(network, tmp_path / "1"):
        train(lambda images: logits(network(images)), optimizer)
    with pytest.raises(UsageError, match=f"its network returns {'tuple' if kind is Features else 'Output'}, and not"):
        read_capture(tmp_path / "1")


class Both(Net):
    """Of two heads, whose losses are added."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        features = self.body(images)
        return self.head(features), features[:, :5]


def test_a_loss_of_two_outputs_is_told(tmp_path: Path) -> None:
    network = Both()
    optimizer = SGD(network.parameters(), 0.1)
    with captured(network, tmp_path, model=MODEL):
        for images, labels in batches():
            optimizer.zero_grad()
            one, other = network(images)
            (nn.functional.cross_entropy(one, labels) + 0.1 * other.square().mean()).backward()
            optimizer.step()
    with pytest.raises(UsageError, match="its loss counts several outputs of its network"):
        read_capture(tmp_path)


class Spectral(Net):
    def __init__(self, kind: Any = nn.utils.parametrizations.spectral_norm) -> None:
        super().__init__()
        self.head = kind(self.head)


class OldSpectral(Spectral):
    def __init__(self) -> None:
        super().__init__(nn.utils.spectral_norm)


class Drops(Net):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.body(images), 0.5, self.training))


class DropsByNumpy(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images * float(np.random.random()))


class DropsByPython(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images * random.random())


class Mixes(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.BatchNorm2d(2, track_running_stats=False)


class Remembers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.InstanceNorm2d(2, track_running_stats=True)


class SavesMemory(Net):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, images, use_reentrant=False))


class SavesMemoryAsBefore(Net):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, images.requires_grad_(), use_reentrant=True))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*|.*spectral_norm.*")
@pytest.mark.parametrize(
    ("kind", "said", "mends"),
    [
        (Spectral, "changes its buffer", True), (OldSpectral, "changes its buffer 'head.weight_u'", True),
        (Remembers, "changes its buffer 'body.1.running_mean' in a pass", True),
        (Mixes, "layer 'body.1' normalises batches without running", False), (Drops, "draws random numbers", False),
        (DropsByNumpy, "draws random numbers", False), (DropsByPython, "draws random numbers", False),
        (SavesMemory, "computes parts again in the backward pass", True),
        (SavesMemoryAsBefore, "computes parts again in the backward pass", True),
    ],
)  # fmt: skip
def test_a_network_that_cannot_be_played_is_told_while_its_federation_runs(
    tmp_path: Path, kind: type[Net], said: str, mends: bool
) -> None:
    """Another whose code computes the same can be; one that computes something else cannot."""
    trained = []
    for folder, facts in ((None, {}), (tmp_path / "0", {}), (tmp_path / "1", {"model": MODEL})):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        network = kind()
        with nullcontext() if folder is None else captured(network, folder, **facts):
            train(network, SGD(network.parameters(), 0.1))
        chance = torch.rand(1), torch.tensor([np.random.random(), random.random()])
        trained.append([*network.state_dict().values(), *chance])
    assert all(torch.equal(one, other) for kept in trained[1:] for one, other in zip(trained[0], kept, strict=True))
    with pytest.raises(UsageError, match=said):
        read_capture(tmp_path / "0")
    if mends:
        assert read_capture(tmp_path / "1").record.model == MODEL
    else:
        with pytest.raises(UsageError, match=said):
            read_capture(tmp_path / "1")


def parts(network: Net) -> Any:
    return lambda images: network.head(network.body(images))


@pytest.mark.parametrize("called", [parts, partial(torch.compile, backend="eager")])
def test_a_network_that_was_not_called_itself_is_named(tmp_path: Path, called: Any) -> None:
    network = Net()
    before = called(network)
    for number, given in enumerate((before, None)):
        with captured(network, tmp_path / str(number)):
            train(called(network) if given is None else given, SGD(network.parameters(), 0.1))
    reads = called is not parts
    for number, found in enumerate((reads, False)):
        if found:
            assert read_capture(tmp_path / str(number)).record.batch_size == 4
        else:
            with pytest.raises(UsageError, match="its network was not seen at work: the loop calls parts of it"):
                read_capture(tmp_path / str(number))
