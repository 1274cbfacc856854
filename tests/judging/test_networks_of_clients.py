"""Networks of clients: which of their outputs is read, and which cannot be played, as is told while they train."""

import gc
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
from harness.capture.loop import Round
from harness.capture.watch import Watch
from harness.cli import run
from harness.judging.capture import read_capture
from harness.judging.declared import groups_of
from harness.judging.explained import explained
from harness.judging.federation import federations
from harness.judging.judgement import checks_without_truth


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
    ("kind", "said", "fixes"),
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
    tmp_path: Path, kind: type[Net], said: str, fixes: bool
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
    if fixes:
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


class Normalize:
    """As torchvision's."""

    def __init__(self, mean: float, std: float) -> None:
        self.mean, self.std = [mean], [std]

    def __call__(self, images: Tensor) -> Tensor:
        return (images - self.mean[0]) / self.std[0]


def scaled(folder: Path, scale: Callable[[Tensor], Tensor], **facts: Any) -> None:
    network = Net()
    optimizer = SGD(network.parameters(), 0.1)
    with captured(network, folder, **facts) as kept:
        for images, labels in batches():
            kept.batch(scale(images), labels)
        train(lambda images: network(scale(images)), optimizer)


def test_a_scaling_outside_of_the_network_is_read_and_played(tmp_path: Path) -> None:
    """The truth is kept as it was before."""
    scaled(tmp_path, Normalize(0.3, 0.4))
    capture = read_capture(tmp_path)
    assert capture.record.model == f"{MODEL}+normalised(0.3|0.4)" and capture.truth is not None
    before = torch.cat([images for images, _ in batches()])
    assert torch.allclose(torch.tensor(capture.truth["images"]), before, atol=1e-6)
    assert explains(tmp_path) == "holds"


def explains(folder: Path) -> str:
    """Whether the truth explains what was sent."""
    (clients,) = federations([read_capture(folder)])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    return explained(clients, group.cell, folder).outcome


@pytest.mark.parametrize(
    "others", [[], [(0.485, 0.229)], [(0.5, 0.9)], [(0.3, 0.4), (0.3, 0.4), (0.485, 0.229)], [(0.3, 0.4), (0.32, 0.39)]]
)
def test_only_a_scaling_that_fits_is_taken(tmp_path: Path, others: list[tuple[float, float]]) -> None:
    """Another that is there may be an earlier client's, or a library's; of two that fit neither is sure."""
    alive = [Normalize(*one) for one in others]
    fitting = len(alive) == 3
    scaled(tmp_path, lambda images: (images - 0.3) / 0.4)
    if fitting:
        assert read_capture(tmp_path).record.model == f"{MODEL}+normalised(0.3|0.4)"
    else:
        with pytest.raises(UsageError, match=r"goes from -0.7.* to 1.7.*, and images are looked for"):
            read_capture(tmp_path)


def test_a_part_that_takes_other_channels_each_time_is_no_matter(tmp_path: Path) -> None:
    """Without a network that is given all that hold what is trained are watched, of an empty optimizer all."""
    pool, network = nn.MaxPool2d(2), Net()
    nothing = SGD([{"params": []}], 0.1)
    with Round(tmp_path) as round_, Watch() as watch:
        before = {name: one.clone() for name, one in network.state_dict().items()}
        pool(torch.zeros(1, 6, 4, 4).requires_grad_())
        pool(torch.zeros(1, 16, 4, 4).requires_grad_())
        train(network, SGD(network.parameters(), 0.1))
        round_.keep(watch, {"framework": "nvflare"}, before, after=network.state_dict())
    assert nothing.param_groups and read_capture(tmp_path).record.model == MODEL


def test_a_scaling_within_the_network_is_none_outside(tmp_path: Path) -> None:
    network = Net()
    network.body.scale = Normalize(0.3, 0.4)  # pyright: ignore
    gc.collect()
    with captured(network, tmp_path):
        train(lambda images: network(images + 0.005), SGD(network.parameters(), 0.1))
    assert read_capture(tmp_path).record.model == MODEL


def test_random_numbers_of_another_thread_are_not_the_network_s(tmp_path: Path) -> None:
    network, drawn = Net(), iter([True, False])

    def passes(images: Tensor) -> Tensor:
        if next(drawn):
            handle = network.head.register_forward_hook(lambda *_: random.random() and None)
            made = network(images)
            handle.remove()
            return made
        return network(images)

    with captured(network, tmp_path):
        train(passes, SGD(network.parameters(), 0.1))
    assert read_capture(tmp_path).record.local_steps == 2


def with_criterion(network: nn.Module) -> None:
    network.criterion = nn.CrossEntropyLoss()
    network.loss = nn.functional.cross_entropy  # pyright: ignore
    network.kind = Net  # pyright: ignore


def with_momentum(network: nn.Module) -> None:
    network.body[1].momentum = 0.5  # pyright: ignore


@pytest.mark.parametrize("change", [with_criterion, with_momentum])
def test_what_computes_nothing_makes_no_other_network(tmp_path: Path, change: Callable[[nn.Module], None]) -> None:
    network = Normed()
    change(network)
    with captured(network, tmp_path) as kept:
        keep(kept)
        train(network, SGD(network.parameters(), 0.1))
    assert explains(tmp_path) == "holds"


class Attends(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(64, 2, 8, 0.1, batch_first=True))
        self.head = nn.Linear(64, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images)[:, 0])


def test_dropout_within_attention_is_turned_off_too(tmp_path: Path) -> None:
    network = Attends().eval()
    with captured(network, tmp_path) as kept:
        keep(kept)
        train(network, SGD(network.parameters(), 0.1))
    assert read_capture(tmp_path).record.model.endswith(":Attends()+no_dropout") and explains(tmp_path) == "holds"


def by_bytes(images: Tensor) -> Tensor:
    return (images * 255).round()


def test_a_scaling_that_nobody_knows_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scaled(tmp_path / "0", by_bytes)
    with pytest.raises(UsageError, match=r"goes from 2 to 255, and .* such as .*:Net\(\)\+normalised\(0[|]0.00392"):
        read_capture(tmp_path / "0")
    scaled(tmp_path / "1", by_bytes, model=f"{MODEL}+normalised(0|0.0039215686)")
    assert "goes from 2 to 255" in caplog.messages[-1] and explains(tmp_path / "1") == "holds"
    scaled(tmp_path / "2", by_bytes, model=MODEL)
    assert "+normalised(0|0.00392" in caplog.messages[-1]


class Quiet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.Dropout(0.5)


def test_dropout_that_is_off_is_off_in_the_network_that_is_played(tmp_path: Path) -> None:
    for number, turn_off in enumerate((lambda layer: layer.eval(), lambda layer: setattr(layer, "p", 0.0))):
        network = Quiet()
        turn_off(network.body[1])
        with captured(network, tmp_path / str(number)) as kept:
            keep(kept)
            train(network, SGD(network.parameters(), 0.1))
        assert read_capture(tmp_path / str(number)).record.model.endswith(":Quiet()+no_dropout")
        assert explains(tmp_path / str(number)) == "holds"


def keep(kept: Any) -> None:
    for images, labels in batches():
        kept.batch(images.numpy(), labels.tolist())


def test_a_class_that_builds_another_network_is_named(tmp_path: Path) -> None:
    network = Net()
    network.body[1] = nn.Tanh()
    with captured(network, tmp_path) as kept:
        keep(kept)
        train(network, SGD(network.parameters(), 0.1))
    with pytest.raises(UsageError, match="is the class of the client's network and builds another: a layer"):
        explains(tmp_path)


class Masked(Net):
    def forward(self, images: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore
        return super().forward(images * mask)


def test_a_network_of_two_inputs_is_told_and_refused_in_one_line(tmp_path: Path) -> None:
    network = Masked()
    for number, facts in enumerate(({}, {"model": f"{__name__}:Masked()"})):
        with captured(network, tmp_path / str(number), **facts) as kept:
            keep(kept)
            train(lambda images: network(images, torch.ones(8, 8)), SGD(network.parameters(), 0.1))
    with pytest.raises(UsageError, match="its network takes 2 tensors for a batch"):
        read_capture(tmp_path / "0")
    (clients,) = federations([read_capture(tmp_path / "1")])
    (group,) = groups_of([clients], "t", ["cpl"], "none", "cpu")
    with pytest.raises(UsageError, match=r"fails on one example alone.*mask"):
        checks_without_truth(group)


class Asks(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (1 if self.training else 2)


def test_a_network_that_asks_for_its_mode_is_in_the_mode_of_a_new_one(tmp_path: Path) -> None:
    for number, mode in enumerate((True, False)):
        network = Asks().train(mode)
        with captured(network, tmp_path / str(number)):
            train(network, SGD(network.parameters(), 0.1))
    assert read_capture(tmp_path / "0").record.model.endswith(":Asks()")
    with pytest.raises(UsageError, match="asks in Asks whether it trains, and is in eval"):
        read_capture(tmp_path / "1")


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.BatchNorm2d(2)


def test_batch_norm_whose_weights_are_fixed_is_played_with_them(tmp_path: Path) -> None:
    network = Normed()
    network.body.requires_grad_(False)
    with captured(network, tmp_path) as kept:
        keep(kept)
        train(network, SGD(network.head.parameters(), 0.1))
    assert explains(tmp_path) == "holds"


def test_a_batch_that_is_no_truth_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = Net()
    with captured(network, tmp_path) as kept:
        kept.batch(torch.zeros(2, 1, 8, 8), [1])
        train(network, SGD(network.parameters(), 0.1))
    (line,) = caplog.messages
    assert "a batch of the truth was not kept" in line and read_capture(tmp_path).truth is None


def test_autocast_hides_what_the_truth_does_not_explain(tmp_path: Path) -> None:
    network = Net()
    with captured(network, tmp_path) as kept, torch.autocast("cpu", torch.bfloat16):
        keep(kept)
        train(network, SGD(network.parameters(), 0.5))
    assert read_capture(tmp_path).record.computed_in == "bfloat16"
    assert explains(tmp_path) in ("holds", "cannot tell")


def test_a_network_of_several_outputs_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Features()
    with captured(network, tmp_path / "0", model=f"{__name__}:Features()") as capture:
        for images, labels in batches():
            capture.batch(images, labels)
        train(lambda images: network(images)[0], SGD(network.parameters(), 0.1))
    assert run(["judge", str(tmp_path / "0"), "--attack", "cpl", "--out", str(tmp_path / "runs")]) == 2
    assert "gives tuple" in capsys.readouterr().err


class Positions(Net):
    """With buffers that no ``state_dict`` holds, as transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(64).flip(0), persistent=False)
        self.register_buffer("sizes", torch.linspace(0.5, 1.5, 64), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        moved = images.flatten(1)[:, self.get_buffer("places")] * self.get_buffer("sizes")
        return super().forward(moved.view(images.shape))


def test_buffers_that_are_not_stored_are_the_network_s_own(tmp_path: Path) -> None:
    network = Positions()
    with captured(network, tmp_path) as capture:
        train(network, SGD(network.parameters(), 0.1))
        for images, labels in batches():
            capture.batch(images, labels)
    assert explains(tmp_path) == "holds"
