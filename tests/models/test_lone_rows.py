"""Rows evaluated one after another, or by the network itself, give what plain autograd gives, whatever is beside."""

import sys
import types
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

import harness.models.rows as ways
from harness.models import RowModel
from harness.models.side_by_side import side_by_side

SHAPE, CLASSES = (3, 8, 8), 5
ITSELF = "vit"


class Normalised(nn.Module):
    """Convolutions of many kinds, residual, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.dilated, self.grouped = nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.Conv2d(8, 8, 1, groups=2)
        self.head = nn.Linear(8, CLASSES)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        values = torch.tanh(self.norm(self.first(images)))
        values = values + torch.tanh(self.second(values)) + self.grouped(self.dilated(values))
        return self.head(values.mean((2, 3)))


class Attends(nn.Module):
    """Attention in all orders of the axes, plain and with what only PyTorch's own does."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Conv2d(3, 8, 4, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.sideways, self.asked = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, bias=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        values = self.layer(self.tokens(images).flatten(2).mT).transpose(0, 1)
        values = values + self.sideways(values, values, values, need_weights=False)[0]
        weighed, weights = self.asked(values, values, values)
        return self.head((values + weighed).mean(0)) + weights.mean()


class Shrinks(nn.Module):
    """Convolutions of images so small that kernels reach beyond them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1), nn.Tanh(), nn.Conv2d(6, 6, (7, 3), padding=(3, 1)), nn.Tanh(),
            nn.Conv2d(6, 8, 3, 2, 1), nn.Tanh(), nn.Conv2d(8, 8, 3, 2, 1), nn.Tanh(), nn.Conv2d(8, 8, 5, padding=2),
        )  # fmt: skip
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module] | str] = {
    "normalised": Normalised, "attends": Attends, "resnet8": "resnet8", "groups": "resnet8+group_norm", ITSELF: ITSELF,
    "shrinks": Shrinks,
    "of torchvision": lambda: VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=CLASSES
    ),
}  # fmt: skip


def scene(
    name: str, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype = torch.float64, rows: int = 3
) -> tuple[RowModel, Tensor, Tensor, Tensor]:
    """A network with weights (R, P), images (R, 2, C, H, W) and labels (R, 2), evaluated alone or by itself."""
    limits = ("_LARGE", "_LARGE_FOR_BATCHES")
    for limit in limits if name == ITSELF else (*limits, "_LARGEST_ITSELF"):
        monkeypatch.setattr(ways, limit, 0)
    module, factory = types.ModuleType("lone_networks"), NETWORKS[name]
    module.make = lambda shape, classes: factory()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    monkeypatch.setitem(sys.modules, "lone_networks", module)
    named = factory if isinstance(factory, str) else "lone_networks:make"
    model, random = RowModel(named, SHAPE, CLASSES).to(torch.device("cpu"), dtype), torch.Generator().manual_seed(0)
    weights = model.initial_weights([(0, row) for row in range(rows)]).to(dtype)
    weights += torch.randn(weights.shape, generator=random).to(dtype) / 20
    images = torch.rand(rows, 2, *SHAPE, generator=random).to(dtype)
    return model, weights, images, torch.randint(CLASSES, (rows, 2), generator=random)


def differentiated(model: RowModel, weights: Tensor, images: Tensor, labels: Tensor) -> list[Tensor]:
    leaf = images.clone().requires_grad_()
    gradient = model.gradient(weights, leaf, labels, create_graph=True)
    return [gradient.detach(), *torch.autograd.grad(gradient.square().sum(), leaf)]


@pytest.mark.parametrize("name", NETWORKS)
def test_first_and_second_derivatives_are_those_of_plain_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, images, labels = scene(name, monkeypatch)
    assert model.evaluates_alone == (name != ITSELF)
    made, twice = differentiated(model, weights, images, labels)
    logits = model.logits(weights, images)
    for row in range(len(weights)):
        module, leaf = model.plain(weights[row]), images[row].clone().requires_grad_()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            own = module(leaf)
            loss = nn.functional.cross_entropy(own, labels[row])
            parts = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        gradient = torch.cat([part.flatten() for part in parts])
        torch.testing.assert_close(logits[row], own.detach())
        torch.testing.assert_close(made[row], gradient.detach())
        torch.testing.assert_close(twice[row], torch.autograd.grad(gradient.square().sum(), leaf)[0])
    assert twice.abs().max() > 1e-6


@pytest.mark.parametrize("name", ["normalised", "attends", ITSELF])
def test_derivatives_by_the_weights_and_by_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that unrolls local steps differentiates by weights that follow from the images."""
    model, weights, images, labels = scene(name, monkeypatch)
    examples = model.per_example_gradients(weights, images, labels)
    torch.testing.assert_close(examples.mean(1), model.gradient(weights, images, labels))
    moving = weights.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.gradient(moving, images, labels, create_graph=True).square().sum(), moving)
    step = 1e-6 * slope / slope.norm()
    change = sum(
        sign * float(model.gradient(weights + sign * step, images, labels).square().sum()) for sign in (1.0, -1.0)
    )
    assert change == pytest.approx(2 * float((slope * step).sum()), rel=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_rows_bits_depend_on_that_row_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, images, labels = scene(name, monkeypatch, torch.float32, rows=5)
    everything = differentiated(model, weights, images, labels)
    for rows in ([4, 4] if name == ITSELF else [4], [1, 2], [3, 0, 0]):
        for part, whole in zip(
            differentiated(model, weights[rows], images[rows], labels[rows]), everything, strict=True
        ):
            assert torch.equal(part, whole[rows])


def test_statistics_are_those_of_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, images, _ = scene("normalised", monkeypatch)
    (alone,) = model.batch_norm_statistics(weights, images)
    monkeypatch.setattr(ways, "_LARGE", 2**60)
    (together,) = RowModel(model.name, SHAPE, CLASSES).to(torch.device("cpu"), torch.float64).batch_norm_statistics(
        weights, images
    )  # fmt: skip
    assert alone.name == together.name == "norm" and alone.count == together.count
    torch.testing.assert_close(alone.mean, together.mean)
    torch.testing.assert_close(alone.variance, together.variance)


def test_threads_take_a_thing_each_and_leave_all_as_it_was() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert side_by_side(lambda number: (number, torch.get_num_threads()), range(5)) == [
            (number, 1) for number in range(5)
        ]
        assert side_by_side(lambda _: torch.get_num_threads(), range(2), apart=False) == [2, 2]
        assert torch.get_num_threads() == 2 and torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.set_num_threads(before)
