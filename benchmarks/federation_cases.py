"""The checks checked: honest clients must hardly ever be accused, planted mistakes must all be named.

The cases are honest clients of many kinds, and mistakes that federations really make.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from harness.datasets import load_dataset
from harness.judging.capture import CaptureRecord, read_capture, write_capture
from harness.judging.checks import BARE, BUFFERS, LEFT_OUT, ON_GRID
from harness.judging.declared import cells_of, groups_of, steps_of
from harness.judging.evidence import ALARMS, Check, pooled
from harness.judging.explained import explained
from harness.judging.federation import federations, gathered, is_readable
from harness.judging.framework_defenses import Declared
from harness.judging.judgement import checks_of_groups
from harness.judging.noise_checks import ANEW, BOUND, ENOUGH, NO_MORE, SHAPE, UNROUNDED
from harness.judging.stage import SimulatedStage
from harness.models.networks import build_module

# Clients of a federation in plain torch, with a clip and noise of their own making, right or wrong on purpose.
#
# They share no code with the defenses, so that what the checks say of them says something of the checks. Their noise
# therefore comes from torch's generator: its seeds are few and distinct, so that its 32 bits repeat no noise.


@dataclass(frozen=True)
class Client:
    """How a client really trains: by default as without a defense.

    Attributes:
        clip: of the norm of an example's gradient, or of every tensor of it (``per_layer``); ``of_update`` of the whole
            round's mean gradient instead, ``each_batch`` of the mean gradient of a step.
        deviation: of the noise on the sum of a step's clipped gradients, or on the clipped mean gradient of the round.
        batch, steps: B examples in each of L local steps; the last one has what is left, where that is less.
        epochs: passes over the examples, of so many steps each.
        momentum, weight_decay, adam: of local training.
        expected: what a step's sum is divided by, where that is not the batch's size (Poisson batches).
        noisy: the tensors that get noise.
        draws: when a generator begins anew: for every client and round as it should be (``right``), with the same
            numbers for all clients (``shared``), as pairs of clients whose noises cancel out (``masks``), for every
            tensor, or for every step.
        noise_before_clip: whether noise is added to each example's gradient and clipped with it.
        law: of the noise, all of the same deviation.
        batches: into which a step's are split, each with noise of its own, of which the mean counts.
        on_buffers: whether clip and noise of the update are on running statistics too.
        rounded: the step of a grid that the mean gradient is rounded to at random, which looks like noise; 0 for none.
    """

    clip: float = float("inf")
    deviation: float = 0.0
    batch: int = 1
    steps: int = 1
    expected: int | None = None
    per_layer: bool = False
    of_update: bool = False
    noisy: Literal["all", "last", "first", "weights", "not last bias"] = "all"
    draws: Literal["right", "shared", "masks", "each tensor", "each step"] = "right"
    noise_before_clip: bool = False
    law: Literal["normal", "laplace", "uniform", "signs"] = "normal"
    rounded: float = 0.0
    epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    adam: bool = False
    batches: int = 1
    each_batch: bool = False
    on_buffers: bool = False

    def train(self, network: nn.Module, images: Tensor, labels: Tensor, rate: float, number: int) -> None:
        """Trains on images (n, C, H, W) with labels (n,); ``number`` tells clients and rounds apart."""
        if self.draws == "masks" and number % 2:
            replace(self, deviation=-self.deviation).train(network, images, labels, rate, number - 1)
            return
        seed = 1000 + {"shared": 0, "masks": number // 2}.get(self.draws, number)
        random, start = torch.Generator().manual_seed(seed), [one.detach().clone() for one in self._sent(network)]
        optimizer = self._optimizer(network, rate)
        for step in range(self.steps * self.epochs):
            if self.draws == "each step":
                random.manual_seed(seed)
            first = step % self.steps * self.batch
            part = slice(first, first + self.batch)
            moved = self._step(network, images[part], labels[part], random)
            for weight, one in zip(network.parameters(), moved, strict=True):
                weight.grad = one
            optimizer.step()
        if self.of_update or self.rounded:
            self._send(network, start, rate * self.steps * self.epochs, random)

    def _optimizer(self, network: nn.Module, rate: float) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.Adam(network.parameters(), lr=rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(network.parameters(), rate, self.momentum, weight_decay=self.weight_decay)

    def _sent(self, network: nn.Module) -> list[Tensor]:
        """What of a network a defense of the update is on."""
        buffers = [one for one in network.buffers() if one.is_floating_point()] if self.on_buffers else []
        return [*network.parameters(), *buffers]

    def _step(self, network: nn.Module, images: Tensor, labels: Tensor, random: torch.Generator) -> list[Tensor]:
        weights = list(network.parameters())
        if self.batches > 1:
            parts = zip(images.chunk(self.batches), labels.chunk(self.batches), strict=True)
            each = [replace(self, batches=1)._step(network, *part, random) for part in parts]
            return [sum(own) / self.batches for own in zip(*each, strict=True)]
        if self.clip == float("inf") or self.of_update:
            # A batch as it is: BatchNorm may mix its examples.
            return list(torch.autograd.grad(nn.functional.cross_entropy(network(images), labels), weights))
        if self.each_batch:
            made = torch.autograd.grad(nn.functional.cross_entropy(network(images), labels), weights)
            return self._noised(self._clipped(list(made)), random)
        total = [torch.zeros_like(one) for one in weights]
        for image, label in zip(images, labels, strict=True):
            made = list(torch.autograd.grad(nn.functional.cross_entropy(network(image[None]), label[None]), weights))
            if self.noise_before_clip:
                made = self._noised(made, random)
            total = [sum_ + one for sum_, one in zip(total, self._clipped(made), strict=True)]
        total = total if self.noise_before_clip else self._noised(total, random)
        return [one / (self.expected or len(images)) for one in total]

    def _clipped(self, made: list[Tensor]) -> list[Tensor]:
        whole = torch.cat([one.flatten() for one in made]).norm()
        norms = [one.norm() if self.per_layer else whole for one in made]
        return [one * min(1.0, self.clip / float(norm)) for one, norm in zip(made, norms, strict=True)]

    def _noised(self, tensors: list[Tensor], random: torch.Generator) -> list[Tensor]:
        last, noisy = len(tensors) - 2, []
        for number, one in enumerate(tensors):
            if self.draws == "each tensor":
                random.manual_seed(1)
            drawn = self.deviation * self._unit(one.shape, random)
            chosen = {
                "all": True, "last": number >= last, "first": number < 2, "weights": one.dim() > 1,
                "not last bias": number < last + 1,
            }[self.noisy]  # fmt: skip
            noisy.append(one + drawn if chosen and self.deviation else one)
        return noisy

    def _unit(self, shape: torch.Size, random: torch.Generator) -> Tensor:
        """Noise of deviation 1."""
        if self.law == "normal":
            return torch.randn(shape, generator=random)
        even = 2 * torch.rand(shape, generator=random) - 1
        if self.law == "laplace":
            return -even.sign() * torch.log1p(-even.abs()) / 2**0.5
        return 3**0.5 * even if self.law == "uniform" else even.sign()

    def _send(self, network: nn.Module, start: list[Tensor], rate: float, random: torch.Generator) -> None:
        """Puts what is sent into the network: the start less ``rate`` times the round's defended mean gradient."""
        with torch.no_grad():
            mean = [(old - one) / rate for old, one in zip(start, self._sent(network), strict=True)]
            if self.of_update:
                mean = self._noised(self._clipped(mean), random)
            if self.rounded:
                step = self.rounded
                mean = [(one / step + torch.rand(one.shape, generator=random)).floor() * step for one in mean]
            for weight, old, one in zip(self._sent(network), start, mean, strict=True):
                weight.copy_(old - rate * one)


def with_batch_norm(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A small network with BatchNorm, in evaluation mode."""
    size = image_shape[0] * image_shape[1] * image_shape[2]
    layers = nn.Linear(size, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, classes)
    return nn.Sequential(nn.Flatten(), *layers).eval()


class _Scale(nn.Module):
    """Multiplies by a learned number, which is an array without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, values: Tensor) -> Tensor:
        return self.factor * values


def with_scale(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A small network with a learned scale."""
    size = image_shape[0] * image_shape[1] * image_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 32), _Scale(), nn.Sigmoid(), nn.Linear(32, classes))


RATE = 0.05
_SHAPE, _CLASSES = (1, 8, 8), 10


@dataclass(frozen=True)
class Case:
    """Some clients, what is declared of them, and the check that must speak up; None where all is honest.

    Attributes:
        really: what clients do: in plain torch, or under a defense of this project; None for the declared one.
        clients: how many are captured; with ``rounds``, it is one client in so many of them.
        one_class: whether all examples are of one class.
        train_mode: whether the network trains in train mode, and sends its buffers.
        sent_as: the file that is captured, ``half`` for a model in float16.
        left: how many examples are in the last batch of a pass; None for as many as in the others.
        uneven: whether the second half of the clients has batches of one example less.
        said: facts that the captures say in the place of the true ones.
        seed: of examples, networks and noise.
    """

    about: str
    declared: Declared
    really: Client | Declared | None = None
    expected: str | None = None
    clients: int = 4
    rounds: bool = False
    batch: int = 1
    steps: int = 1
    model: str = "mlp"
    one_class: bool = False
    train_mode: bool = False
    sent_as: Literal["after", "update", "gradient", "half"] = "after"
    left: int | None = None
    uneven: bool = False
    said: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def alarms(self, checks: list[Check]) -> list[Check]:
        """The checks that speak up."""
        return [check for check in checks if check.outcome in ALARMS]

    def as_expected(self, checks: list[Check]) -> bool:
        """Whether those speak up that must: none, or the expected one among others."""
        spoken = [check.name for check in self.alarms(checks)]
        return not spoken if self.expected is None else self.expected in spoken


def run_case(case: Case, data_root: Path, truth: bool = True) -> list[Check]:
    """Trains a case's clients, captures them in files, and checks what is in the files.

    Args:
        truth: whether the files hold the truth, which then is checked against what was sent where that can be read.
    """
    with TemporaryDirectory() as folder:
        return checks_of_folders(list(captures(case, Path(folder), data_root)), data_root if truth else None)


def checks_of_folders(folders: list[Path], data_root: Path | None = None) -> list[Check]:
    """What the checks say of captures; of their truth too where a root of datasets is given."""
    found = [read_capture(folder) for folder in folders]
    if data_root is None:
        found = [replace(capture, truth=None) for capture in found]
    groups = groups_of(federations(found, attacked=False), "captures", ["cpl"], "none", "cpu")
    checks = checks_of_groups([(group.sizes, group) for group in groups])
    if data_root is None or not is_readable(found[0]) or found[0].truth is None:
        return checks
    groups = groups_of(federations(found), "captures", ["cpl"], "none", "cpu")
    return checks + pooled([(group.sizes, [explained(group.captured, group.cell, data_root)]) for group in groups])


def captures(case: Case, folder: Path, data_root: Path) -> Iterator[Path]:
    """Folders of captures, one for each client or round."""
    plain = case.really if isinstance(case.really, Client) else Client(batch=case.batch, steps=case.steps)
    made = list(_trained(case, plain, folder, data_root))
    if not isinstance(case.really, Client):
        record = _record(case, plain, case.left).model_copy(update={"defense": case.really or case.declared})
        _redone(made, record, case, data_root)
    yield from made


def _record(case: Case, plain: Client, left: int | None) -> CaptureRecord:
    optimizer = "adam" if plain.adam else "momentum" if plain.momentum else "sgd"
    each = plain.batch * (plain.steps - 1) + (left or plain.batch)
    passes: dict[str, Any] = {"examples": each, "epochs": plain.epochs} if plain.epochs > 1 or left else {}
    facts: dict[str, Any] = {
        "model": case.model, "image_shape": _SHAPE, "classes": _CLASSES, "learning_rate": RATE, "clients_per_round": 10,
        "batch_size": plain.batch, "expected_batch_size": plain.expected, "local_steps": plain.steps * plain.epochs,
        "optimizer": optimizer, "defense": case.declared,
    }  # fmt: skip
    return CaptureRecord(**facts | passes | dict(case.said))


def _trained(case: Case, plain: Client, folder: Path, data_root: Path) -> Iterator[Path]:
    data = load_dataset("digits", data_root)
    chosen = (data.labels == 3).nonzero()[:, 0] if case.one_class else torch.arange(len(data.labels))
    if case.seed:
        chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(case.seed))]
    for number in range(case.clients):
        fewer = int(case.uneven and number >= case.clients // 2)
        client = replace(plain, batch=plain.batch - fewer)
        record, each = _record(case, client, case.left), client.batch * (client.steps - 1) + (case.left or client.batch)
        # One client in several rounds starts each from another network, and holds the same examples.
        network = build_module(case.model, _SHAPE, _CLASSES, seed=1000 * case.seed + (number if case.rounds else 0))
        network.train(case.train_mode)
        own = chosen[torch.arange(each) + (0 if case.rounds else number * each)]
        images, labels = data.images[own], data.labels[own]
        before = _arrays(network.state_dict())
        client.train(network, images, labels, RATE, 1000 * case.seed + number)
        after = _arrays(network.state_dict())
        own_record = record.model_copy(update={"round": number if case.rounds else 0})
        trained_on = [images.repeat(client.epochs, 1, 1, 1).numpy(), labels.repeat(client.epochs).numpy()]
        yield write_capture(
            folder / str(number), own_record, before, images=trained_on[0], labels=trained_on[1],
            **_sent(case, before, after),
        )  # fmt: skip


def _sent(case: Case, before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    if case.sent_as == "half":
        return {"after": {name: value.astype(np.float16) for name, value in after.items()}}
    moved = {name: after[name] - before[name] for name in before}
    gradient = {name: value / np.float32(-RATE) for name, value in moved.items()}
    return {case.sent_as: {"after": after, "update": moved, "gradient": gradient}[case.sent_as]}


def _redone(folders: list[Path], record: CaptureRecord, case: Case, data_root: Path) -> None:
    """Puts what the clients of this project send under a defense in the place of what plain ones sent."""
    captured = replace(gathered([read_capture(folder) for folder in folders]), record=record)
    (cell,) = cells_of(captured, "captures", ["cpl"], "none", "cpu")
    cell = cell.model_copy(update={"seeds": (case.seed,)})
    observation = SimulatedStage(data_root, 128, captured, cell, None, None).set(cell).observation
    for folder, seen in zip(folders, observation.target, strict=True):
        moved: dict[str, Tensor] = observation.model.layout.split(-RATE * steps_of(cell) * seen)
        before = dict(read_capture(folder).before)
        after = {name: before[name] + moved[name].numpy() for name in moved}
        declared = record.model_copy(update={"defense": case.declared})
        truth = read_capture(folder).truth
        assert truth is not None
        write_capture(folder, declared, before, images=truth["images"], labels=truth["labels"], after=after)


def _arrays(state: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.detach().clone().numpy() for name, value in state.items()}


def summary(cases: list[Case], found: list[list[Check]]) -> dict[str, Any]:
    """Counts of both kinds, and whether they are as they must be."""
    judged = [(case.expected is None, case.as_expected(checks)) for case, checks in zip(cases, found, strict=True)]
    honest, planted = ([good for one, good in judged if one is kind] for kind in (True, False))
    alarms = honest.count(False)
    return {
        "honest": len(honest), "alarms": alarms, "planted": len(planted),
        "named": planted.count(True), "passed": alarms == 0 and all(planted),
        "checks": sum(map(len, found)),
    }  # fmt: skip


_BATCH_NORM, _SCALED = "federation_cases:with_batch_norm", "federation_cases:with_scale"


def suite_cases() -> list[Case]:
    """All of them, honest ones first."""
    return _honest() + _planted()


def _cdp(clip: float = 1.0, sigma: float = 6.0, clipping: str = "whole", **more: Any) -> Declared:
    return Declared(name="fed_cdp", settings={"clip": clip, "sigma": sigma, "clipping": clipping, **more})


def _sdp(clip: float = 1.0, sigma: float = 6.0, steps: int = 1, **more: Any) -> Declared:
    """Clip and noise of a client's whole update, the clip in units of its mean gradient."""
    settings = {"clip": clip * RATE * steps, "sigma": sigma, "clipping": "whole", "noise_at": "client", **more}
    return Declared(name="fed_sdp", settings=settings)


def _opacus(sigma: float = 1.0) -> Declared:
    """As its user declares it, whose batches are drawn."""
    return Declared(name="make_private", settings={"noise_multiplier": sigma, "max_grad_norm": 1.0})


def _named(name: str, **settings: Any) -> Declared:
    return Declared(name=name, settings=settings)


def _pruned_then_noise() -> Declared:
    return _named("pruning+fed_sdp", **{"fed_sdp.noise_at": "client"})


def _secure(**more: Any) -> Declared:
    """A client's share of a secure sum on a grid that float32 can show."""
    grid = {"rotation": False, "bits": 16, "clip": 1.0, "sigma": 4.0, "protocol": "sum"}
    return Declared(name="secagg_ddp", settings=grid | more)


def _honest() -> list[Case]:
    noisy = Client(clip=1.0, deviation=6.0)
    update = Client(clip=1.0, deviation=6.0, of_update=True)
    return [
        Case("one example each", _cdp(), noisy),
        Case("a batch", _cdp(), Client(clip=1.0, deviation=6.0, batch=4)),
        Case("noise on each of four batches that make a step", _cdp(), Client(1.0, 6.0, batch=8, batches=4),
             said={"batch_size": 2, "accumulate": 4, "optimizer": "sgd"}),
        Case("noise on the mean of each of four batches", _cdp(convention="mean"),
             Client(1.0, 12.0, batch=8, batches=4), said={"batch_size": 2, "accumulate": 4, "optimizer": "sgd"}),
        Case("Poisson batches", _cdp(), Client(clip=1.0, deviation=6.0, batch=5, expected=4)),
        Case("several steps", _cdp(), Client(clip=1.0, deviation=6.0, batch=2, steps=4)),
        Case("one client alone", _cdp(), noisy, clients=1),
        Case("24 clients", _cdp(), noisy, clients=24),
        Case("one client in four rounds", _cdp(), noisy, rounds=True),
        Case("clipped per tensor", _cdp(clipping="layer"), Client(clip=1.0, deviation=6.0, per_layer=True)),
        Case("weak noise", _cdp(clip=4, sigma=0.01), Client(clip=4.0, deviation=0.04, batch=2)),
        Case("all of one class", _cdp(sigma=1), Client(clip=1.0, deviation=1.0, batch=8), one_class=True),
        Case("a clip alone", _cdp(clip=0.1, sigma=0), Client(clip=0.1, batch=3)),
        Case("a gradient", _cdp(), noisy, sent_as="gradient"),
        Case("sent in half precision", _cdp(), noisy, sent_as="half"),
        Case("clip and noise of the update", _sdp(steps=2), Client(**_of(update, steps=2))),
        Case("BatchNorm that stays at the client", _sdp(), update, model=_BATCH_NORM),
        Case("noise of the mean", _cdp(convention="mean"), batch=4),
        Case("noise of each example", _cdp(convention="per_example"), batch=4, steps=2),
        Case("every client a share", _sdp(noise_split="share")),
        Case("shared noise on a grid", _secure(), batch=2),
        Case("shared Gaussian noise", _named("secagg_ddp", mechanism="gaussian", mode="paper", protocol="sum")),
        Case("adaptive bound", _named("quantile", sigma=1.5)),
        Case("pruned", _named("pruning", threshold=0.9), batch=4),
        Case("pruned per tensor", _named("pruning", threshold=0.5, mode="layer")),
        Case("pruned, then noise", _pruned_then_noise()),
        Case("convolutions", _cdp(), Client(clip=1.0, deviation=6.0, batch=2), model="lenet"),
        Case("few coordinates", _named("dssgd", share=0.05)),
        Case("signs of numbers", _named("paper:signSGD"), batch=4),
        Case("two bits for a number", _named("quantization", bits=2), batch=4),
        Case("nothing declared", _named("none"), Client(batch=3, steps=2)),
        Case("nothing declared, in half precision", _named("none"), Client(batch=2), sent_as="half"),
        Case("momentum, one step", _named("none"), Client(batch=2, momentum=0.9)),
        Case("small last batch", _named("none"), Client(batch=4, steps=3), left=2),
        Case("small last batch under noise", _cdp(), Client(clip=1.0, deviation=6.0, batch=4, steps=2), left=3),
        Case("several epochs", _named("none"), Client(batch=4, steps=2, epochs=2), left=3),
        Case("batches of two sizes", _cdp(sigma=1), Client(clip=1.0, deviation=1.0, batch=4), uneven=True),
        Case("Poisson batches of a size that nobody gave", _opacus(), Client(1.0, 1.0, batch=7, expected=4),
             said={"batch_size": 7, "expected_batch_size": None}),
        Case("Poisson batches of the expected size", _opacus(0.01), Client(1.0, 0.01, batch=7, expected=4),
             said={"batch_size": 4, "expected_batch_size": None}, one_class=True),
        Case("Poisson batches without noise", _opacus(0.0), Client(1.0, batch=9, expected=4),
             said={"batch_size": 4, "expected_batch_size": None}, one_class=True),
        Case("Poisson batches without noise of a size that nobody gave", _opacus(0.0), Client(1.0, batch=7, expected=4),
             said={"batch_size": 7, "expected_batch_size": None}),
        Case("momentum under clip and noise", _sdp(steps=3), Client(**_of(update, steps=3, momentum=0.9))),
        Case("Adam under clip and noise", _sdp(steps=3), Client(**_of(update, steps=3, adam=True))),
        Case("weight decay under weak noise", _sdp(clip=0.5, sigma=0.02, steps=2),
             Client(clip=0.5, deviation=0.01, of_update=True, steps=2, weight_decay=0.5)),
        Case("epochs under clip and noise", _sdp(steps=6), Client(**_of(update, batch=2, steps=3, epochs=2))),
        Case("noise on statistics of BatchNorm too", _sdp(), Client(**_of(update, batch=4, on_buffers=True)),
             model=_BATCH_NORM, train_mode=True),
        Case("clipped here, noise at the server", _sdp(clip=0.5, sigma=0),
             Client(clip=0.5, of_update=True)),
        Case("clip and noise in half precision", _sdp(), update, sent_as="half"),
    ]  # fmt: skip


def _of(client: Client, **changes: Any) -> dict[str, Any]:
    return {**vars(client), **changes}


def _planted() -> list[Case]:
    def wrong(**changes: Any) -> Client:
        return Client(**{"clip": 1.0, "deviation": 6.0, **changes})

    quiet = _cdp(clip=0.1, sigma=0)
    return [
        Case("noise off", _cdp(), wrong(deviation=0.0), ENOUGH),
        Case("noise off, where it would be weak", _cdp(clip=4, sigma=0.002), Client(clip=4.0), ENOUGH),
        Case("a tenth of the noise", _cdp(), wrong(deviation=0.6), ENOUGH),
        Case("divided by the root of the batch", _cdp(), wrong(batch=4, deviation=3.0), ENOUGH),
        Case("divided by the batch twice", _cdp(), wrong(batch=4, deviation=1.5), ENOUGH),
        Case("noise of a sum on the mean", _cdp(), wrong(batch=4, deviation=24.0), NO_MORE),
        Case("the learning rate once more", _sdp(), wrong(deviation=6.0 * RATE, of_update=True), ENOUGH),
        Case("a share where all is declared", _sdp(), _sdp(noise_split="share"), ENOUGH),
        Case("defended at the server only", _sdp(), Client(), ENOUGH),
        Case("only the last layer", _cdp(), wrong(noisy="last"), ENOUGH),
        Case("only the first layer", _cdp(), wrong(noisy="first"), ENOUGH),
        Case("biases left out", _cdp(), wrong(noisy="weights"), ENOUGH),
        Case("the last bias left out in all", _sdp(clip=0.5, sigma=0.2),
             wrong(clip=0.5, deviation=0.1, of_update=True, noisy="not last bias"), ENOUGH, clients=8),
        Case("noise before the clip", _cdp(), wrong(noise_before_clip=True), ENOUGH),
        Case("Laplace noise of the same level", _cdp(), wrong(law="laplace"), SHAPE),
        Case("tosses of a sign of the same level", _cdp(), wrong(batch=4, law="signs"), SHAPE),
        Case("uniform noise of the same level", _sdp(), wrong(of_update=True, law="uniform"), SHAPE, clients=1),
        Case("the same noise in all clients", _cdp(), wrong(draws="shared"), ANEW),
        Case("masks of a secure sum in the place of noise", _cdp(), wrong(draws="masks"), ANEW),
        Case("the same noise in all rounds", _cdp(), wrong(draws="shared"), ANEW, rounds=True),
        Case("the same noise in clients of two sizes", _cdp(), wrong(batch=4, draws="shared"), ANEW, clients=2,
             uneven=True),
        Case("the same noise in all tensors", _cdp(), wrong(draws="each tensor"), ANEW, clients=1),
        Case("the same noise in all steps", _cdp(), wrong(draws="each step", steps=4), NO_MORE),
        Case("ten times the clip, and its noise", _cdp(), wrong(clip=10.0, deviation=60.0), NO_MORE),
        Case("ten times the clip", quiet, Client(clip=1.0), BOUND),
        Case("no clip", _cdp(clip=0.1, sigma=0.01), Client(clip=1e9, deviation=0.001), BOUND),
        Case("clipped per tensor, not as a whole", quiet, Client(clip=0.1, per_layer=True), BOUND),
        Case("rounded in the place of noise", _cdp(), Client(clip=1.0, rounded=1.0), ENOUGH),
        Case("rounded behind its noise, and not declared", _cdp(), wrong(rounded=2.0), UNROUNDED),
        Case("statistics of BatchNorm sent raw", _sdp(), wrong(batch=4, of_update=True), BUFFERS, model=_BATCH_NORM,
             train_mode=True),
        Case("half pruned, nine tenths declared", _named("pruning", threshold=0.9),
             _named("pruning", threshold=0.5), LEFT_OUT),
        Case("pruned, and its noise off", _pruned_then_noise(), _named("pruning", threshold=0.9), ENOUGH),
        Case("a tenth sent, a hundredth declared", _named("dssgd", share=0.01), _named("dssgd", share=0.1), LEFT_OUT),
        Case("an array without a dimension", _named("flower:LocalDpMod", clipping_norm=RATE, sensitivity=RATE),
             expected=BARE, model=_SCALED),
        Case("no integers", _secure(), _named("fed_cdp", clip=1.0, sigma=1.3, clipping="whole"), ON_GRID),
    ]  # fmt: skip
