"""BatchNorm in training mode: one gradient for a batch, running statistics as torch keeps them, and what these tell."""

import copy

import pytest
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.models import RowModel
from harness.models.batch_norm import RunningStatistics, recovered, shares_of

SHAPE, CLASSES, BATCH = (3, 8, 8), 4, 5


@pytest.fixture
def model() -> RowModel:
    return RowModel("resnet8", SHAPE, CLASSES).to(torch.device("cpu"), torch.float64)


def batches(rows: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    images = torch.rand(rows, BATCH, *SHAPE, generator=random, dtype=torch.float64)
    return images, torch.randint(CLASSES, (rows, BATCH), generator=random)


def torchs_own(model: RowModel, weights: Tensor) -> nn.Module:
    """The network as somebody trains it who knows nothing of this project: running statistics move."""
    module = copy.deepcopy(model.plain(weights)).train()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats = True
    return module


def gradient_of(module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(module(images), labels)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])


def test_a_client_has_the_gradient_of_its_batch_in_training_mode(model: RowModel) -> None:
    weights, (images, labels) = model.initial_weights([(0, 0), (0, 1)]).double(), batches(2)
    made = model.joint_gradients(weights, images, labels).mean()
    for row in range(2):
        module = torchs_own(model, weights[row])
        torch.testing.assert_close(made[row], gradient_of(module, images[row], labels[row]))
        assert (made[row] - gradient_of(module.eval(), images[row], labels[row])).norm() > 0.1 * made[row].norm()
    # That is what the attacks' engine computes of all rows together, twice differentiable.
    torch.testing.assert_close(model.gradient(weights, images, labels), made)
    leaf = images.clone().requires_grad_()
    again = model.gradient(weights, leaf, labels, create_graph=True)
    (slope,) = torch.autograd.grad(again.square().sum(), leaf)
    moved = 1e-5 * slope / slope.norm()
    change = (model.gradient(weights, images + moved, labels).square() - made.square()).sum()
    assert float(change) == pytest.approx(float((slope * moved).sum()), rel=1e-2)


def test_no_pass_moves_the_running_statistics_of_the_model(model: RowModel) -> None:
    weights, (images, labels) = model.initial_weights([(0, 0)]).double(), batches(1)
    before = {name: value.clone() for name, value in model.plain_module.named_buffers()}
    model.joint_gradients(weights, images, labels)
    model.gradient(weights, images, labels)
    model.plain(weights[0])(images[0])
    assert all(torch.equal(value, before[name]) for name, value in model.plain_module.named_buffers())


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
@pytest.mark.parametrize("steps", [1, 3])
def test_running_statistics_follow_as_torchs_do_and_tell_of_the_batches(
    model: RowModel, steps: int, momentum: float | None
) -> None:
    for layer in model.normalised.values():
        layer.momentum = momentum
        layer.num_batches_tracked.fill_(4)  # as of a model that has been trained
    weights, (images, labels) = model.initial_weights([(0, 0)]).double(), batches(steps)
    module, running = torchs_own(model, weights[0]), RunningStatistics(model.normalised, 1)
    seen: list[Tensor] = []
    module.blocks[1].second_norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for step in range(steps):
        running.follow(model.joint_gradients(weights, images[step : step + 1], labels[step : step + 1]).statistics)
        module(images[step])
    own = dict(module.named_buffers())
    for name, values in running.buffers.items():
        torch.testing.assert_close(values[0], own[name])
    counts = {name: places * BATCH for name, places in model.places.items()}
    mean, variance = recovered(model.normalised, running.buffers, counts, steps)["blocks.1.second_norm"]
    shares = torch.tensor(shares_of(model.normalised["blocks.1.second_norm"], steps), dtype=torch.float64)
    shares = shares / shares.sum()
    means = torch.stack([inputs.mean((0, 2, 3)) for inputs in seen])
    variances = torch.stack([inputs.var((0, 2, 3), unbiased=False) for inputs in seen])
    torch.testing.assert_close(mean[0], shares @ means)
    torch.testing.assert_close(variance[0], shares @ variances)
    assert (variance[0] - shares @ variances * BATCH * 4 / (BATCH * 4 - 1)).abs().max() > 1e-4  # not the unbiased one


def test_what_does_not_move_tells_nothing(model: RowModel) -> None:
    first = next(iter(model.normalised))
    model.normalised[first].momentum = 0.0
    weights, (images, labels) = model.initial_weights([(0, 0)]).double(), batches(1)
    running = RunningStatistics(model.normalised, 1)
    running.follow(model.joint_gradients(weights, images, labels).statistics)
    counts = {name: places * BATCH for name, places in model.places.items()}
    assert recovered(model.normalised, running.buffers, counts, 1).keys() == model.normalised.keys() - {first}


@pytest.mark.parametrize("asked", ["norms", "materialise", "weighted_sum", "per_example_gradients", "present"])
def test_no_example_has_a_gradient_of_its_own(model: RowModel, asked: str) -> None:
    weights, (images, labels) = model.initial_weights([(0, 0)]).double(), batches(1)
    joint = model.example_gradients(weights, images, labels, None, BATCH)
    calls = {
        "norms": joint.norms, "materialise": joint.materialise,
        "weighted_sum": lambda: joint.weighted_sum(torch.ones(1, BATCH, 1)),
        "per_example_gradients": lambda: model.per_example_gradients(weights, images, labels),
        "present": lambda: model.example_gradients(weights, images, labels, torch.ones(1, BATCH), BATCH),
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"--model resnet8\+group_norm \(harness.models.group_norm") as caught:
        calls[asked]()
    assert "\n" not in str(caught.value)


def test_one_value_has_no_variance() -> None:
    model = RowModel("resnet8", (3, 4, 4), CLASSES)  # whose last layers see a single place
    weights, images = model.initial_weights([(0, 0)]), torch.rand(1, 1, 3, 4, 4)
    with pytest.raises(UsageError, match=r"blocks.2.first_norm.*one value per channel.*batches of 2 or more"):
        model.joint_gradients(weights, images, torch.zeros(1, 1, dtype=torch.long))
    model.require_batch(2)


def test_changed_to_group_norm_examples_have_gradients_again() -> None:
    model = RowModel("resnet8+group_norm", SHAPE, CLASSES)
    weights, (images, labels) = model.initial_weights([(0, 0)]), batches(1)
    assert not model.normalised
    made = model.per_example_gradients(weights, images.float(), labels)
    torch.testing.assert_close(made.mean(1), model.gradient(weights, images.float(), labels), atol=1e-5, rtol=1e-3)
