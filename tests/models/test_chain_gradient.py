"""The gradient of a chain and its derivative, written out, are those of the plain network; rows stay independent."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.vectors import Layout
from harness.models import row_sequence as module
from harness.models.row_layers import are_grouped
from harness.models.row_sequence import RowSequence, chain_gradient, row_sequence
from harness.models.rows import ChainedRows

SHAPE, CLASSES = (2, 10, 9), 3


def lenet() -> list[nn.Module]:
    return [
        nn.Conv2d(2, 12, 5, stride=2, padding=2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, bias=False), nn.Sigmoid(),
        nn.Conv2d(12, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, CLASSES),
    ]  # fmt: skip


NETWORKS = {
    "lenet": lenet,
    "one channel": lambda: [nn.AvgPool2d(1), nn.Conv2d(2, 1, 3), nn.Sigmoid(), nn.Conv2d(1, 4, 3), nn.Tanh(),
                            nn.Flatten(), nn.Linear(120, CLASSES)],
    "pools": lambda: [nn.Conv2d(2, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 2), nn.ELU(),
                      nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES)],
    "many channels of one": lambda: [nn.Conv2d(2, 1, 3), nn.Tanh(), nn.Conv2d(1, 16, 3, padding=1), nn.Sigmoid(),
                                     nn.Flatten(), nn.Linear(896, CLASSES)],
    "mlp": lambda: [nn.Flatten(), nn.Linear(180, 16), nn.Sigmoid(), nn.Linear(16, 8, bias=False), nn.LeakyReLU(),
                    nn.Linear(8, CLASSES)],
    "logistic": lambda: [nn.Flatten(), nn.Linear(180, CLASSES)],
    "before the weights": lambda: [nn.Tanh(), nn.AvgPool2d(2), nn.Sigmoid(), nn.Flatten(), nn.Linear(40, 6), nn.Tanh(),
                                   nn.Linear(6, CLASSES)],
}  # fmt: skip


def network(name: str) -> tuple[nn.Sequential, RowSequence, Layout]:
    torch.manual_seed(0)
    made = nn.Sequential(*NETWORKS[name]())
    sequence = row_sequence(made)
    assert sequence is not None
    return made, sequence, Layout.of(made)


def rows_of(layout: Layout, rows: int, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, images, labels and probabilities."""
    random = torch.Generator().manual_seed(1)
    weights = torch.randn(rows, layout.total, generator=random, dtype=torch.float64) / 4
    images = torch.rand(rows, batch, *SHAPE, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (rows, batch), generator=random)
    # No shares of one: an attack's soft labels need not be.
    shares = torch.rand(rows, batch, CLASSES, generator=random, dtype=torch.float64)
    return weights.to(dtype), images.to(dtype), labels, shares.to(dtype)


def plain(made: nn.Module, layout: Layout, weights: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """The gradients (R, P), one row after another, by PyTorch."""
    rows = []
    for flat, batch, truth in zip(weights, images, targets, strict=True):
        leaf = flat.clone().requires_grad_()
        loss = functional.cross_entropy(torch.func.functional_call(made, layout.split(leaf), (batch,)), truth)
        rows.append(torch.autograd.grad(loss, leaf, create_graph=True)[0])
    return torch.stack(rows)


def close(made: Tensor, truth: Tensor, dtype: torch.dtype) -> bool:
    return bool((made - truth).norm() <= (1e-10 if dtype == torch.float64 else 1e-4) * truth.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_equals_the_derivatives_of_the_network(name: str, batch: int, dtype: torch.dtype) -> None:
    made, sequence, layout = network(name)
    weights, images, labels, shares = rows_of(layout, 3, batch, dtype)
    double = made.double() if dtype == torch.float64 else made
    direction = torch.randn(3, layout.total, generator=torch.Generator().manual_seed(2)).to(dtype)
    for targets in (labels, shares):
        derivatives = []
        for function in (
            lambda *given: chain_gradient(sequence, layout, weights, *given),
            lambda *given: plain(double, layout, weights, *given),
        ):
            unknowns = [images.clone().requires_grad_()]
            if targets is shares:
                unknowns.append(shares.clone().requires_grad_())
            gradient = function(unknowns[0], unknowns[-1] if targets is shares else labels)
            matching = (gradient * direction).sum() + gradient.square().sum()
            derivatives.append([gradient.detach(), *torch.autograd.grad(matching, unknowns)])
        for ours, theirs in zip(*derivatives, strict=True):
            assert ours.shape == theirs.shape and theirs.norm() > 0
            assert close(ours, theirs, dtype)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["lenet", "pools", "mlp", "many channels of one"])
def test_a_row_does_not_depend_on_the_others(name: str, batch: int) -> None:
    _, sequence, layout = network(name)
    weights, images, labels, _ = rows_of(layout, 12, batch, torch.float32)

    def both(some: slice) -> tuple[Tensor, Tensor]:
        leaf = images[some].clone().requires_grad_()
        gradient = chain_gradient(sequence, layout, weights[some], leaf, labels[some])
        return gradient.detach(), torch.autograd.grad(gradient.square().sum(), leaf)[0]

    every = both(slice(None))
    for some in (slice(0, 2), slice(0, 3), slice(3, 8), slice(10, 12)):
        for alone, among in zip(both(some), every, strict=True):
            assert torch.equal(alone, among[some])


@pytest.mark.parametrize("name", ["pools", "before the weights"])
def test_derivatives_by_targets_alone_and_none_at_all(name: str) -> None:
    made, sequence, layout = network(name)
    weights, images, _, shares = rows_of(layout, 3, 2, torch.float64)
    leaf = shares.clone().requires_grad_()
    ours, theirs = (
        torch.autograd.grad(gradient.pow(3).sum(), leaf)[0]
        for gradient in (
            chain_gradient(sequence, layout, weights, images, leaf),
            plain(made.double(), layout, weights, images, leaf),
        )
    )
    assert close(ours, theirs, torch.float64)
    model_rows = ChainedRows(sequence, layout, looks_back=False)
    for pixels, create_graph in ((images, True), (images.clone().requires_grad_(), False)):
        gradient = model_rows.gradient(weights, pixels, shares, create_graph)
        assert not gradient.requires_grad
        assert close(gradient, plain(made, layout, weights, images, shares).detach(), torch.float64)


def test_a_third_derivative_is_refused() -> None:
    _, sequence, layout = network("mlp")
    weights, images, labels, _ = rows_of(layout, 2, 1, torch.float64)
    leaf = images.requires_grad_()
    gradient = chain_gradient(sequence, layout, weights, leaf, labels)
    (once,) = torch.autograd.grad(gradient.square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|used in the graph"):
        torch.autograd.grad(once.square().sum(), leaf)


@pytest.mark.parametrize("grouped", [True, False])
def test_convolutions_are_grouped_or_patches(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, on whatever machine: the results are one but for rounding."""
    made, sequence, layout = network("lenet")
    weights, images, labels, _ = rows_of(layout, 3, 2, torch.float32)
    assert not are_grouped(images.double())
    monkeypatch.setattr(module, "are_grouped", lambda values: grouped)
    leaf = images.clone().requires_grad_()
    gradient = chain_gradient(sequence, layout, weights, leaf, labels)
    truth = plain(made, layout, weights, leaf, labels)
    assert close(gradient, truth, torch.float32)
    ours, theirs = (torch.autograd.grad(one.pow(3).sum(), leaf)[0] for one in (gradient, truth))
    assert close(ours, theirs, torch.float32)
