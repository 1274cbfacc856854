"""A chain of known layers computes without ``vmap`` what it computes with it, up to the second derivative."""

import pytest
import torch
from torch import Tensor, nn

from harness.models import RowModel, row_model
from harness.models.example_gradients import FactoredGradients, MaterialisedGradients
from harness.models.row_sequence import row_sequence
from harness.models.rows import Way

SHAPE, CLASSES, ROWS = (2, 9, 8), 3, 3


def chain(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    features = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *SHAPE)).shape[1]
    return nn.Sequential(nn.Sequential(*layers), nn.Flatten(), nn.Linear(features, CLASSES))


CHAINS = {
    "linear": lambda: chain(nn.Flatten(), nn.Linear(144, 5, bias=False), nn.Tanh()),
    "convolution": lambda: chain(nn.Conv2d(2, 4, 5, stride=2, padding=2), nn.Sigmoid()),
    "pooling": lambda: chain(nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
    "uneven": lambda: chain(nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(1, 0)), nn.Sigmoid()),
    "uneven twice": lambda: chain(
        nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(0, 1)), nn.Tanh(), nn.Conv2d(3, 2, (1, 4), padding=(2, 0))
    ),
}


def both(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[RowModel, RowModel]:
    """The same network, evaluated as a chain and by ``vmap``."""
    monkeypatch.setattr(row_model, "build_module", lambda *_, **__: CHAINS[name]())
    fast, plain = (RowModel(name, SHAPE, CLASSES).to(torch.device("cpu"), torch.float64) for _ in range(2))
    assert row_sequence(fast.plain_module) is not None
    plain.evaluate_by(Way(None, other_layers=True))
    return fast, plain


def results(model: RowModel, weights: Tensor, images: Tensor, labels: Tensor) -> list[Tensor]:
    pixels, parameters = images.clone().requires_grad_(True), weights.clone().requires_grad_(True)
    inner = model.gradient(weights, pixels, labels, create_graph=True)
    through = model.gradient(parameters, pixels, labels, create_graph=True)
    (by_pixels,) = torch.autograd.grad(inner.pow(3).sum(), pixels)
    both_ways = torch.autograd.grad(through.pow(3).sum(), [pixels, parameters])
    return [model.logits(weights, images), inner, model.gradient(weights, images, labels), by_pixels, *both_ways]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_is_the_network(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, plain = both(name, monkeypatch)
    random = torch.Generator().manual_seed(1)
    weights = torch.randn(ROWS, fast.layout.total, generator=random, dtype=torch.float64) / 4
    images = torch.rand(ROWS, batch, *SHAPE, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (ROWS, batch), generator=random)
    for left, right in zip(
        results(fast, weights, images, labels), results(plain, weights, images, labels), strict=True
    ):
        assert right.abs().max() > 0
        assert torch.allclose(left, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CHAINS)
def test_example_gradients_of_the_chain_are_the_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, plain = both(name, monkeypatch)
    random = torch.Generator().manual_seed(2)
    weights = torch.randn(ROWS, fast.layout.total, generator=random, dtype=torch.float64) / 4
    images = torch.rand(ROWS, 4, *SHAPE, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (ROWS, 4), generator=random)
    factors = torch.rand(ROWS, 4, len(fast.layout.sizes), generator=random, dtype=torch.float64)
    made, truth = (one.example_gradients(weights, images, labels, None, 4) for one in (fast, plain))
    assert isinstance(made, FactoredGradients) and isinstance(truth, MaterialisedGradients)
    for ours, theirs in (
        (made.norms(), truth.norms()), (made.weighted_sum(factors), truth.weighted_sum(factors)),
        (made.mean(), truth.mean()), (made.materialise(), truth.materialise()),
    ):  # fmt: skip
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1)], ids=["apart", "overlapping"])
@pytest.mark.parametrize("values", ["random", "ties", "below zero", "not a number"])
def test_a_rectifier_after_the_maximum_is_the_one_before_it(pool: nn.MaxPool2d, values: str) -> None:
    images = torch.randn(2, 3, *SHAPE, generator=torch.Generator().manual_seed(1))
    if values == "ties":
        images = images.round()
    elif values == "below zero":
        images = -images.abs()
    elif values == "not a number":
        images[0, 0, 0, 0] = torch.nan
    library = nn.Sequential(nn.ReLU(), pool)
    chain = row_sequence(library)
    assert chain is not None and isinstance(chain.stages[-1], nn.ReLU)
    made: list[Tensor] = []
    for network in (lambda given: chain({}, given), lambda given: library(given.flatten(0, 1)).unflatten(0, (2, 3))):
        leaf = images.clone().requires_grad_()
        output = network(leaf)
        (first,) = torch.autograd.grad(output.pow(3).sum(), leaf, create_graph=True)
        made += [output, first, *torch.autograd.grad(first.square().sum(), leaf)]
    for ours, theirs in zip(made[:3], made[3:], strict=True):
        assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.layer(values)


@pytest.mark.parametrize(
    "layer",
    [Branching(), nn.Conv2d(1, 1, 3, groups=1, dilation=2), nn.BatchNorm1d(4), nn.PReLU()],
    ids=["own module", "dilated", "normalising", "weighted activation"],
)
def test_other_networks_are_left_to_vmap(layer: nn.Module) -> None:
    assert row_sequence(nn.Sequential(nn.Flatten(), layer)) is None
