"""Many rows at once give what plain autograd gives for each, and a row's numbers are its own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.base.randomness import derive_seed
from harness.models import RowModel, build_module

NETWORKS = ["lenet", "cnn", "mlp", "unit_logistic", "tempered_cnn", "pca_mlp", "frozen_linear"]
SHAPE, CLASSES = (1, 12, 12), 10  # with ten classes rows of weights are not aligned in memory
SHAPES = {"tempered_cnn": (1, 16, 17)}


def network(name: str, shape: tuple[int, ...] | None = None) -> RowModel:
    """A network, fitted to images where it is fitted to any."""
    shape = shape or SHAPES.get(name, SHAPE)
    data = torch.rand(80, *shape, generator=torch.Generator().manual_seed(8))
    return RowModel(name, shape, CLASSES, data)


def scene(
    name: str, rows: int, batch: int, dtype: torch.dtype, shape: tuple[int, ...] | None = None
) -> tuple[RowModel, Tensor, Tensor, Tensor]:
    """A network with weights (R, P), images (R, B, C, H, W) and labels (R, B)."""
    random = torch.Generator().manual_seed(3)
    model = network(name, shape).to(torch.device("cpu"), dtype)
    weights = model.initial_weights([(0, row) for row in range(rows)]).to(dtype)
    images = torch.rand(rows, batch, *model.image_shape, generator=random).to(dtype)
    return model, weights, images, torch.randint(CLASSES, (rows, batch), generator=random)


def plain_gradient(model: RowModel, weights: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """The gradient (P,) by plain autograd on a plain module."""
    module = build_module(model.name, model.image_shape, model.classes, seed=9).to(weights.dtype)
    module.load_state_dict(model.state(weights))
    loss = functional.cross_entropy(module(images), targets)
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_a_loop(name: str, soft: bool) -> None:
    model, weights, images, labels = scene(name, 3, 2, torch.float64)
    random = torch.Generator().manual_seed(4)
    targets = torch.rand(3, 2, CLASSES, generator=random, dtype=torch.float64).softmax(-1) if soft else labels
    ours = model.gradient(weights, images, targets)
    examples = model.per_example_gradients(weights, images, targets)
    assert ours.shape == weights.shape and examples.shape == (3, 2, model.layout.total)
    for row in range(3):
        expected = plain_gradient(model, weights[row], images[row], targets[row])
        assert (ours[row] - expected).abs().max() < 1e-10
        for example in range(2):
            part = slice(example, example + 1)
            expected = plain_gradient(model, weights[row], images[row, part], targets[row, part])
            assert (examples[row, example] - expected).abs().max() < 1e-10
    assert ours.abs().amax(1).min() > 1e-3 and not ours.requires_grad


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_can_be_differentiated_with_respect_to_the_images(name: str) -> None:
    model, weights, images, labels = scene(name, 2, 1, torch.float64)
    target = torch.randn(weights.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def distance(pixels: Tensor) -> Tensor:
        return (model.gradient(weights, pixels, labels, create_graph=True) - target).square().sum()

    leaf = images.clone().requires_grad_(True)
    (derivative,) = torch.autograd.grad(distance(leaf), leaf)
    step = 1e-5
    for place in [(0, 0, 0, 3, 4), (1, 0, 0, 7, 6)]:
        nudge = torch.zeros_like(images)
        nudge[place] = step
        slope = (distance(images + nudge) - distance(images - nudge)).detach() / (2 * step)
        assert float(derivative[place]) == pytest.approx(float(slope), rel=1e-4, abs=1e-6)


def second_order(model: RowModel, weights: Tensor, images: Tensor, labels: Tensor) -> list[Tensor]:
    leaf = images.clone().requires_grad_(True)
    gradient = model.gradient(weights, leaf, labels, create_graph=True)
    (derivative,) = torch.autograd.grad(gradient.square().sum(), leaf)
    return [model.logits(weights, images), gradient.detach(), derivative]


@pytest.mark.parametrize(
    ("name", "shape", "batch"),
    [
        ("lenet", (1, 8, 8), 1),
        ("mlp", (1, 8, 8), 2),
        ("lenet", (3, 9, 11), 1),
        ("cnn", SHAPE, 2),
        ("mlp", (1, 8, 8), 1),
        ("unit_logistic", (1, 9, 11), 2),
        ("tempered_cnn", (1, 16, 17), 1),
        ("pca_mlp", (1, 9, 11), 2),
        ("pca_mlp", SHAPE, 1),
        ("frozen_linear", (3, 9, 11), 2),
    ],
)
def test_a_rows_bits_depend_on_that_row_alone(name: str, shape: tuple[int, ...], batch: int) -> None:
    """However many rows there are, and whatever the row's place among them."""
    model, weights, images, labels = scene(name, 20, batch, torch.float32, shape)
    everything = second_order(model, weights, images, labels)
    random = torch.Generator().manual_seed(6)
    choices: list[Tensor] = [torch.randint(20, (size,), generator=random) for size in range(2, 20)]
    for rows in [torch.tensor([3, 3]), torch.arange(19, -1, -1), *choices]:
        for part, whole in zip(second_order(model, weights[rows], images[rows], labels[rows]), everything, strict=True):
            assert torch.equal(part, whole[rows])


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_depend_on_their_own_key_only(name: str) -> None:
    model = network(name)
    together = model.initial_weights([(0, row) for row in range(4)])
    assert torch.equal(model.initial_weights([(0, 2)])[0], together[2])
    assert not torch.equal(together[0], together[1])
    before = torch.random.get_rng_state()
    again = network(name).initial_weights([(0, 3)])[0]
    assert torch.equal(again, together[3]) and torch.equal(torch.random.get_rng_state(), before)
    module = build_module(name, model.image_shape, CLASSES, derive_seed("weights", 0, 3))
    assert torch.equal(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]), again)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_plain_module_computes_the_same(name: str) -> None:
    model, weights, images, _ = scene(name, 2, 3, torch.float64)
    for row in (1, 0):
        plain: Callable[[Tensor], Tensor] = model.plain(weights[row])
        assert torch.allclose(plain(images[row]), model.logits(weights, images)[row], rtol=1e-10, atol=1e-12)
