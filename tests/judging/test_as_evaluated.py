"""Clients of every optimizer, captured from a run of ours: judged from the very numbers that ``evaluate`` reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.capture import CaptureRecord, write_capture
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.played_round import PlayedRound
from harness.experiment import CellSettings, cell_settings
from harness.judging.capture import read_capture
from harness.judging.declared import cells_of
from harness.judging.federation import gathered
from harness.judging.stage import CapturedStage, SimulatedStage
from harness.models.networks import build_module

VICTIMS = 3
# A body at half of the head's learning rate, and biases that do not decay.
BODY = ["1.weight", "1.bias", "3.weight", "3.bias"]
SLOW_BODY = [{"parameters": BODY, "learning_rate": 0.025}]
STILL_BIASES = [{"parameters": ["1.bias", "3.bias", "5.bias"], "weight_decay": 0}]
# The optimizer, other settings, and what a capture says otherwise than they do.
CLIENTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "momentum": ("sgd:lr=0.05,momentum=0.9", {"local_steps": 2}, {}),
    "nesterov and decay": ("sgd:lr=0.05,momentum=0.5,nesterov=true,weight_decay=0.1", {"local_steps": 2}, {}),
    "dampening": ("sgd:lr=0.05,momentum=0.9,dampening=0.3", {"local_steps": 3}, {}),
    "schedule": ("sgd:schedule=0.05/0.1/0.02", {"local_steps": 3}, {"optimizer": "sgd", "schedule": [0.05, 0.1, 0.02]}),
    "fedprox": ("sgd:lr=0.1,fedprox=0.5", {"local_steps": 3}, {"optimizer": "sgd:lr=0.1", "fedprox": 0.5}),
    "clip": ("sgd:lr=0.05,clip_grad_norm=0.1", {}, {"optimizer": "sgd:lr=0.05", "clip_grad_norm": 0.1}),
    "sums": ("sgd:lr=0.05,accumulate=2,accumulate_sum=true", {"batch_size": 4, "local_steps": 2}, {"batch_size": 2}),
    "a sum of losses": ("sgd:lr=0.05,momentum=0.9,weight_decay=0.1,loss_scale=4", {"batch_size": 4, "local_steps": 2},
                        {"optimizer": "sgd:lr=0.05,momentum=0.9,weight_decay=0.1", "loss_scale": 4}),
    "adam": ("adam:lr=0.01", {}, {}), "adam, a sum of losses": ("adam:lr=0.01,loss_scale=3", {"batch_size": 3}, {}),
    "adam, steps": ("adam:lr=0.01,weight_decay=0.1", {"local_steps": 3}, {}),
    "adam, sums": ("adam:lr=0.01,accumulate=2,accumulate_sum=true", {"batch_size": 2}, {"batch_size": 1}),
    "adamw": ("adamw:lr=0.01", {}, {}),
    "rmsprop": ("rmsprop:lr=0.01,momentum=0.5", {"local_steps": 2}, {}),
    "a slow body": ("sgd:lr=0.05,momentum=0.9,groups=33100x0.5x0/1010x1x0", {"local_steps": 2},
                    {"optimizer": "sgd:lr=0.05,momentum=0.9", "groups": SLOW_BODY}),
    "biases without decay": ("adamw:lr=0.01,groups=12800x1x0.1/200x1x0/20000x1x0.1/100x1x0/1000x1x0.1/10x1x0", {},
                             {"optimizer": "adamw:lr=0.01,weight_decay=0.1", "groups": STILL_BIASES}),
    "decay apart, steps": ("sgd:lr=0.05,groups=12800x1x0.1/200x1x0/20000x1x0.1/100x1x0/1000x1x0.1/10x1x0",
                           {"local_steps": 3}, {"optimizer": "sgd:lr=0.05,weight_decay=0.1", "groups": STILL_BIASES}),
    "epochs": ("sgd:lr=0.05,momentum=0.9", {"batch_size": 2, "epochs": 2, "client_examples": 3}, {"examples": 3}),
    "head only": ("sgd:lr=0.05,momentum=0.9", {"local_steps": 2, "model": "mlp+only(5)"}, {}),
    "float16": ("sgd", {"sent_as": "float16", "local_steps": 2}, {}),
    "bfloat16": ("adam:lr=0.01", {"sent_as": "bfloat16"}, {}),
}  # fmt: skip


def asked(optimizer: str, more: dict[str, Any]) -> CellSettings:
    usual = {"dataset": "digits", "model": "mlp", "tap": "T1.out", "victims": VICTIMS, "labels": "known"}
    update = "first" if more.get("local_steps", 1) == 1 and "epochs" not in more else "unroll"
    return cell_settings(**usual | {"optimizer": optimizer, "update_model": update} | more)


def captures(scene: Scene, settings: CellSettings, facts: dict[str, Any], folder: Path) -> list[Path]:
    """What the clients of a scene would have written: their weights before and after, in the dtype sent."""
    seen, truth = scene.observation, scene.truth
    played = PlayedRound(seen.model, seen.weights, truth.images, truth.labels, seen.keys, settings)
    after = (seen.weights.double() + played._read(played._context(0))).float()
    dtype = getattr(torch, settings.sent_as or "float32")
    assert torch.equal(after, after.to(dtype).float()) and torch.equal(seen.weights, seen.weights.to(dtype).float())
    sizes, batch = settings.step_sizes or (settings.batch_size,) * settings.local_steps, settings.batch_size
    trained = [step * batch + place for step, size in enumerate(sizes) for place in range(size)]
    said = {
        "optimizer": settings.optimizer, "learning_rate": settings.learning_rate, "batch_size": batch,
        "local_steps": settings.local_steps, "epochs": settings.epochs, "dtype": settings.sent_as, **facts,
    }  # fmt: skip
    name, _, only = settings.model.partition("+")
    whole, trains = build_module(name, (1, 8, 8), 10, seed=0), set(seen.model.layout.names)
    frozen = tuple(one for one, _ in whole.named_parameters() if only and one not in trains)
    record = CaptureRecord(model=name, image_shape=(1, 8, 8), classes=10, frozen=frozen, **said)
    kind = np.float16 if settings.sent_as == "float16" else np.float32
    found = []
    for row in range(VICTIMS):
        states = (seen.model.state(flat[row]) for flat in (seen.weights, after))
        before, sent = ({one: value.numpy().astype(kind) for one, value in state.items()} for state in states)
        images, labels = truth.images[row][trained], truth.labels[row][trained]
        found.append(write_capture(folder / str(row), record, before, images=images, labels=labels, after=sent))
    return found


@pytest.mark.parametrize(("optimizer", "more", "facts"), CLIENTS.values(), ids=CLIENTS)
def test_judged_numbers_are_evaluates(
    optimizer: str, more: dict[str, Any], facts: dict[str, Any], tmp_path: Path
) -> None:
    settings = asked(optimizer, more)
    scene = Stage(tmp_path, 64).set(settings)
    clients = gathered([read_capture(one) for one in captures(scene, settings, facts, tmp_path)])
    (cell,) = cells_of(clients, "captures", ["cpl"], "none", "cpu")
    ours = scene.observation
    for stage in (CapturedStage, SimulatedStage):
        judged = stage(tmp_path, 64, clients, cell, None, None).set(cell)
        theirs = judged.observation
        assert torch.equal(theirs.target, ours.target) and torch.equal(theirs.weights, ours.weights)
        assert torch.equal(judged.truth.images, scene.truth.images)
        assert (theirs.certainty is None) == (ours.certainty is None)
        assert ours.certainty is None or torch.equal(theirs.certainty, ours.certainty)
        for fact in ("optimizer", "reading", "learning_rate", "local_steps", "update_model", "examples", "places"):
            assert getattr(theirs, fact) == getattr(ours, fact), fact
