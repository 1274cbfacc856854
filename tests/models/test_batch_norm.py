"""BatchNorm in evaluation mode: its statistics are read per row, and GradInversion can match them."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, Dummy, run_attack, run_reference
from harness.base.building import build
from harness.models import RowModel
from harness.observation import Observation

OWN = '''
"""Two BatchNorm layers of different statistics, registered in the opposite of the order they are called in."""
from torch import nn

class Network(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.late, self.early = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.first, self.second = nn.Conv2d(channels, 3, 3), nn.Conv2d(3, 3, 3)
        self.late.running_mean.fill_(0.3), self.late.running_var.fill_(2.0)
        self.early.running_mean.fill_(-0.2), self.early.running_var.fill_(0.5)
        self.head = nn.Linear(3, classes)

    def forward(self, images):
        hidden = self.early(self.first(images)).sigmoid()
        return self.head(self.late(self.second(hidden)).sigmoid().mean((2, 3)))

def network(image_shape, classes):
    return Network(image_shape[0], classes).eval()
'''


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowModel:
    (tmp_path / "normalised_network_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return RowModel("normalised_network_of_a_user:network", (1, 8, 8), 4)


def observed(model: RowModel, rows: int = 2) -> tuple[Observation, Tensor]:
    random = torch.Generator().manual_seed(0)
    images = torch.rand(rows, 3, 1, 8, 8, generator=random)
    labels = torch.tensor([[0, 1, 2]] * rows)
    keys = tuple((0, row) for row in range(rows))
    weights = model.initial_weights(list(keys))
    return Observation(model, weights, model.gradient(weights, images, labels), 3, keys, labels=labels), images


def test_statistics_are_those_of_a_loop_in_the_order_of_the_forward_pass(model: RowModel) -> None:
    observation, images = observed(model)
    found = model.batch_norm_statistics(observation.weights, images)
    assert [float(model.running_statistics(one.name)[0][0]) for one in found] == pytest.approx([-0.2, 0.3])
    for row in range(2):
        module = model.plain(observation.weights[row])
        hidden = module.first(images[row])
        inputs = [hidden, module.second(module.early(hidden).sigmoid())]
        for one, expected in zip(found, inputs, strict=True):
            assert torch.allclose(one.mean[row], expected.mean((0, 2, 3)), atol=1e-6)
            assert torch.allclose(one.variance[row], expected.var((0, 2, 3), unbiased=False), atol=1e-6)


def test_a_network_without_batch_norm_has_no_statistics() -> None:
    model = RowModel("lenet", (1, 8, 8), 4)
    assert model.batch_norm_statistics(model.initial_weights([(0, 0)]), torch.rand(1, 2, 1, 8, 8)) == []


def test_gradinversion_adds_the_statistics_to_its_loss(model: RowModel) -> None:
    observation, images = observed(model)
    weights = {"batch_norm": 0.5, "first_batch_norm": 10.0, "matching_weight": 0.1}
    with_statistics = build(ATTACKS, "gradinversion", weights)
    without = build(ATTACKS, "gradinversion", weights | {"batch_norm": 0.0})
    dummy, victims = Dummy(images, observation.labels), torch.arange(2)
    extra = with_statistics.penalty(observation, dummy, victims) - without.penalty(observation, dummy, victims)
    found = model.batch_norm_statistics(observation.weights, images)
    for row in range(2):
        distances = [
            float((one.mean[row] - mean).norm() + (one.variance[row] - variance).norm())
            for one in found
            for mean, variance in [model.running_statistics(one.name)]
        ]
        assert float(extra[row]) == pytest.approx(0.5 * (10.0 * distances[0] + distances[1]) / 0.1, rel=1e-4)


@pytest.mark.parametrize("engine", [run_attack, run_reference])
def test_gradinversion_runs_on_it(engine: Callable, model: RowModel) -> None:
    observation, _ = observed(model)
    result = engine(build(ATTACKS, "gradinversion", {"max_iterations": 15, "warm_up": 3, "restarts": 1}), observation)
    assert result.images.isfinite().all() and result.iterations.tolist() == [15, 15]
    assert (result.loss < result.initial_loss).all()


def test_the_statistics_are_part_of_what_an_adversary_sees(model: RowModel) -> None:
    observation, _ = observed(model)
    before = observation.fingerprint()
    model.plain_module.early.running_mean += 1.0
    assert observation.fingerprint() != before
