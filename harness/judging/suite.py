"""The checks checked: honest clients must hardly ever be accused, planted mistakes must all be named."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from harness.capture.reading import read_capture
from harness.capture.record import CaptureRecord, Declared
from harness.capture.writing import write_capture
from harness.datasets import load_dataset
from harness.judging.checks import checks_of
from harness.judging.declared import cells_of, steps_of
from harness.judging.evidence import Check
from harness.judging.federation import gathered
from harness.judging.planted import Client
from harness.judging.stage import SimulatedStage
from harness.models.networks import build_module

#: Of the honest cases. Each check's chance is one in a thousand, so one of them all is more than is to be expected.
ALLOWED_ALARMS = 1
RATE = 0.05
_SHAPE, _CLASSES = (1, 8, 8), 10
_ALARMS = ("violated", "more than declared")


@dataclass(frozen=True)
class Case:
    """Some clients, what is declared of them, and the check that must speak up; None where all is honest.

    Attributes:
        really: what clients do: in plain torch, or under a defense of this project; None for the declared one.
        clients: how many are captured; with ``rounds``, it is one client in so many of them.
        one_class: whether all examples are of one class.
        train_mode: whether the network trains in train mode, and sends its buffers.
        sent_as: the file that is captured, ``half`` for a model in float16.
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

    def alarms(self, checks: list[Check]) -> list[Check]:
        """The checks that speak up."""
        return [check for check in checks if check.outcome in _ALARMS]

    def as_expected(self, checks: list[Check]) -> bool:
        """Whether those speak up that must: none, or the expected one among others."""
        spoken = [check.name for check in self.alarms(checks)]
        return not spoken if self.expected is None else self.expected in spoken


def run_case(case: Case, data_root: Path) -> list[Check]:
    """Trains a case's clients, captures them in files, and checks what is in the files."""
    with TemporaryDirectory() as folder:
        return checks_of_folders(list(captures(case, Path(folder), data_root)))


def checks_of_folders(folders: list[Path]) -> list[Check]:
    """What the checks say of captures."""
    captured = gathered([read_capture(folder) for folder in folders])
    (cell,) = cells_of(captured, "captures", ["cpl"], "none", "cpu")
    return checks_of(captured, cell)


def captures(case: Case, folder: Path, data_root: Path) -> Iterator[Path]:
    """Folders of captures, one for each client or round."""
    plain = case.really if isinstance(case.really, Client) else Client(batch=case.batch, steps=case.steps)
    record = CaptureRecord(
        model=case.model, image_shape=_SHAPE, classes=_CLASSES, learning_rate=RATE, batch_size=plain.batch,
        expected_batch_size=plain.expected,
        local_steps=plain.steps, defense=case.declared,
    )  # fmt: skip
    made = list(_trained(case, plain, record, folder, data_root))
    if not isinstance(case.really, Client):
        _redone(made, record.model_copy(update={"defense": case.really or case.declared}), case, data_root)
    yield from made


def _trained(case: Case, plain: Client, record: CaptureRecord, folder: Path, data_root: Path) -> Iterator[Path]:
    data = load_dataset("digits", data_root)
    chosen = (data.labels == 3).nonzero()[:, 0] if case.one_class else torch.arange(len(data.labels))
    each = plain.batch * plain.steps
    for number in range(case.clients):
        # One client in several rounds starts each from another network, and holds the same examples.
        network = build_module(case.model, _SHAPE, _CLASSES, seed=number if case.rounds else 0)
        network.train(case.train_mode)
        own = chosen[torch.arange(each) + (0 if case.rounds else number * each)]
        images, labels = data.images[own], data.labels[own]
        before = _arrays(network.state_dict())
        plain.train(network, images, labels, RATE, number)
        after = _arrays(network.state_dict())
        own_record = record.model_copy(update={"round": number if case.rounds else 0})
        yield write_capture(
            folder / str(number), own_record, before, images=images.numpy(), labels=labels.numpy(),
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
    observation = SimulatedStage(data_root, 128, captured, cell, None, None).set(cell).observation
    for folder, seen in zip(folders, observation.target, strict=True):
        moved: dict[str, Tensor] = observation.model.layout.split(-RATE * steps_of(cell) * seen)
        before = dict(read_capture(folder).before)
        after = {name: before[name] + moved[name].numpy() for name in moved}
        declared = record.model_copy(update={"defense": case.declared})
        write_capture(folder, declared, before, after=after)


def _arrays(state: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: value.detach().clone().numpy() for name, value in state.items()}


def summary(cases: list[Case], found: list[list[Check]]) -> dict[str, Any]:
    """Counts of both kinds, and whether they are as they must be."""
    judged = [(case.expected is None, case.as_expected(checks)) for case, checks in zip(cases, found, strict=True)]
    honest, planted = ([good for one, good in judged if one is kind] for kind in (True, False))
    alarms = honest.count(False)
    return {
        "honest": len(honest), "alarms": alarms, "allowed": ALLOWED_ALARMS, "planted": len(planted),
        "named": planted.count(True), "passed": alarms <= ALLOWED_ALARMS and all(planted),
        "checks": sum(map(len, found)),
    }  # fmt: skip
