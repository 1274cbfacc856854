"""Clients that train BatchNorm in training mode: what is read of them is what a plain training loop sends."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.attacks import ATTACKS, Dummy, run_attack, run_reference
from harness.attacks.candidates import dummy_gradient
from harness.base.building import build
from harness.base.errors import UsageError
from harness.defenses import DEFENSES, Cohort, Custom, Defense, Operation, Point
from harness.evaluation.controls import high_noise_control
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings
from harness.observation import Observation

STATISTICS = {"batch_norm": 1.0, "matching_weight": 1.0, "tv": 0.0, "l2_prior": 0.0, "restarts": 1}


def settled(**values: Any) -> tuple[CellSettings, Scene]:
    common = {"dataset": "digits", "model": "resnet8", "victims": 2, "batch_size": 3, "dtype": "float64"}
    settings = cell_settings(**common | {"tap": "T1.out"} | values)
    return settings, Stage(Path("no data root"), chunk=64).set(settings)


def candidate(scene: Scene) -> torch.Tensor:
    return dummy_gradient(scene.observation, scene.truth.images.double(), scene.truth.labels, False).detach()


@pytest.mark.parametrize("steps", [1, 2])
def test_an_update_is_that_of_a_plain_loop_in_training_mode(steps: int) -> None:
    settings, scene = settled(local_steps=steps, update_model="unroll", learning_rate=0.5)
    observation = scene.observation
    for row in range(2):
        module = copy.deepcopy(observation.model.plain(observation.weights[row])).train()
        before = {name: value.clone() for name, value in module.named_parameters()}
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.track_running_stats = True
        optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
        for images, labels in zip(scene.truth.images[row].split(3), scene.truth.labels[row].split(3), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images.double()), labels).backward()
            optimizer.step()
        sent = torch.cat([(before[name] - value).flatten() for name, value in module.named_parameters()])
        torch.testing.assert_close(observation.target[row], sent.detach() / (0.5 * steps))
        kept = 0.9**steps
        mean, variance = observation.batches.statistics["norm"]
        torch.testing.assert_close(mean[row], module.norm.running_mean / (1 - kept))  # which began at zero,
        count = 3 * 64
        unbiased = (module.norm.running_var - kept) / (1 - kept)  # and at one
        torch.testing.assert_close(variance[row], unbiased * (count - 1) / count)


CASES: list[tuple[dict[str, Any], float]] = [
    ({}, 0.0),
    ({"local_steps": 2, "update_model": "unroll"}, 0.0),
    ({"local_steps": 2, "update_model": "avg", "learning_rate": 1e-7}, 1e-5),
    ({"tap": "T2.step"}, 0.0),
]


@pytest.mark.parametrize(("values", "most"), CASES)
def test_the_true_images_explain_what_was_read(values: dict[str, Any], most: float) -> None:
    _, scene = settled(**values)
    target = scene.observation.target
    assert float((candidate(scene) - target).norm() / target.norm()) <= most + 1e-9
    # As one large batch they would not, where there are several.
    if scene.observation.examples > 3:
        together = scene.observation.model.gradient(
            scene.observation.weights, scene.truth.images.double(), scene.truth.labels
        )
        assert float((together - target).norm() / target.norm()) > 0.01


class Summed(Defense):
    """A secure sum that protects nothing else."""

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [Custom(lambda messages, _: messages.sum(0), at=Point.SUM, adds=None)]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_secure_sum_is_of_batches_that_each_client_normalises(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setitem(DEFENSES._entries, "summed", Summed)
    values = {"local_steps": steps, "update_model": "avg", "learning_rate": 1e-7}
    _, scene = settled(defense="summed", tap="T0.in", clients=4, clients_per_round=4, victims=2, **values)
    assert scene.observation.examples == 4 * 3 * steps
    target = scene.observation.target
    assert float((candidate(scene) - target).norm() / target.norm()) < 1e-5
    assert float(penalty(scene.observation, scene).max()) < 1e-4


def penalty(observation: Observation, scene: Scene) -> torch.Tensor:
    attack = build(ATTACKS, "gradinversion", STATISTICS)
    dummy = Dummy(scene.truth.images.double(), scene.truth.labels)
    return attack.penalty(observation, dummy, torch.arange(2))


@pytest.mark.parametrize("steps", [1, 2])
def test_what_travels_tells_the_truth_and_what_is_hidden_does_not(steps: int) -> None:
    values = {"local_steps": steps, "update_model": "avg", "learning_rate": 1e-7}
    sent, hidden = settled(**values)[1], settled(**values, batch_norm="hidden")[1]
    assert torch.equal(sent.observation.target, hidden.observation.target)
    assert sent.observation.fingerprint() != hidden.observation.fingerprint()
    assert float(penalty(sent.observation, sent).max()) < 1e-4
    assert float(penalty(hidden.observation, hidden).min()) > 0.1
    one = sent.observation.take(torch.tensor([1]))
    assert torch.equal(one.batches.statistics["norm"][0][0], sent.observation.batches.statistics["norm"][0][1])


@pytest.mark.parametrize("batch_norm", ["sent", pytest.param("hidden", marks=pytest.mark.slow)])
def test_both_engines_agree(batch_norm: str) -> None:
    _, scene = settled(batch_norm=batch_norm, local_steps=2, update_model="avg", batch_size=2)
    attack = build(ATTACKS, "gradinversion", {"max_iterations": 6, "warm_up": 2, "restarts": 1})
    batched, reference = (engine(attack, scene.observation) for engine in (run_attack, run_reference))
    torch.testing.assert_close(batched.images, reference.images, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(batched.loss, reference.loss)
    assert (batched.loss < batched.initial_loss).all()


def test_no_result_depends_on_how_victims_are_grouped() -> None:
    _, scene = settled(victims=3)
    attack = build(ATTACKS, "gradinversion", {"max_iterations": 4, "warm_up": 1, "restarts": 1})
    whole, apart = (run_attack(attack, scene.observation, chunk=chunk) for chunk in (3, 1))
    torch.testing.assert_close(whole.images, apart.images, atol=1e-9, rtol=0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"defense": "fed_cdp"}, r"single examples.*resnet8\+group_norm"),
    ({"defense": "fed_acdp"}, r"single examples.*resnet8\+group_norm"),
    ({"defense": "dp_local"}, r"single examples.*resnet8\+group_norm"),
    ({"tap": "T2.raw"}, r"single examples.*resnet8\+group_norm"),
    ({"model": "mlp", "batch_norm": "hidden"}, "has no BatchNorm in training mode; leave --batch-norm out"),
    ({"model": "resnet8+group_norm", "batch_norm": "sent"}, "has no BatchNorm in training mode"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        settled(**values)
    assert "\n" not in str(caught.value)


def test_what_travels_is_in_the_document_and_no_epsilon_covers_it(small: Any, tmp_path: Path) -> None:
    common = {
        "model": "resnet8", "batch_size": 2, "tap": "T1.out", "defense": "fed_sdp", "attack": "gradinversion",
        "defense_args": {"noise_at": "client"}, "attack_args": {"max_iterations": 2, "warm_up": 1, "restarts": 1},
    }  # fmt: skip
    cells = [small.cell(**common), small.cell(**common, batch_norm="hidden"), small.cell()]
    document = small.play(cells, tmp_path)
    sent, hidden, other = (one for one in document.cells if one.role == "cell")
    assert [one.batch_norm for one in (sent, hidden, other)] == ["sent", "hidden", None]
    assert [cell.identity().get("batch_norm", "absent") for cell in cells] == ["absent", "hidden", "absent"]
    assert all(one.guarantee == "none" and "running statistics" in one.notes for one in sent.privacy)
    assert any(one.guarantee != "none" for one in hidden.privacy)
    # Beside a hundred times the noise statistics would still travel as they are.
    high_noise = [one for one in document.cells if one.control == "noise_x100" and one.model == "resnet8"]
    assert high_noise and {one.batch_norm for one in high_noise} == {"hidden"}
    assert high_noise_control(cells[0]).batch_norm is None
