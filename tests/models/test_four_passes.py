"""Layers in four passes beside what PyTorch's own forward and reverse modes make of the same formulas."""

import gc
import weakref
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.models import RowModel
from harness.models.four_passes.attention import Attention, FirstAttention, FirstResidual, first
from harness.models.four_passes.layers import Chain, Gelu, Layer, LayerNorm, Linear, Residual
from harness.models.four_passes.patches import Patches
from harness.models.four_passes.weights import Weight, Weights
from harness.vectors.layout import Layout

EXAMPLES, TOKENS, WIDTH, HEADS = 2, 5, 6, 3
Values = dict[str, Tensor]


class Case(NamedTuple):
    """Shapes of weights, the layer that has them, and the same by PyTorch."""

    shapes: dict[str, tuple[int, ...]]
    layer: Callable[[Callable[[str], Weight]], Layer]
    plain: Callable[[Tensor, Values], Tensor]


def attended(queries: Tensor, others: Tensor) -> Tensor:
    """(B, Q, E) of queries and of keys and values (B, T, 2 E)."""
    asking, *given = (part.unflatten(-1, (HEADS, -1)) for part in (queries, *others.chunk(2, -1)))
    scores = torch.einsum("bqhd,bkhd->bhqk", asking, given[0]) / asking.shape[-1] ** 0.5
    made = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), given[1])
    return made.flatten(2)


def by_all(values: Tensor, named: Values) -> Tensor:
    made = functional.linear(values, named["w"], named["b"]).unflatten(0, (EXAMPLES, TOKENS))
    return attended(made[..., :WIDTH], made[..., WIDTH:]).flatten(0, 1)


def by_first(values: Tensor, named: Values) -> Tensor:
    made = functional.linear(values, named["w"], named["b"]).unflatten(0, (EXAMPLES, TOKENS))
    return values[::TOKENS] + attended(made[:, :1, :WIDTH], made[..., WIDTH:])[:, 0]


def first_attention(weight: Callable[[str], Weight]) -> Layer:
    ask, project = (
        Linear(weight("w").rows(*rows), weight("b").rows(*rows)) for rows in ((0, WIDTH), (WIDTH, 3 * WIDTH))
    )
    return FirstResidual(FirstAttention(ask, project, HEADS, TOKENS), TOKENS)


PROJECTION: dict[str, tuple[int, ...]] = {"w": (3 * WIDTH, WIDTH), "b": (3 * WIDTH,)}
CASES = {
    "linear": Case(
        {"w": (4, WIDTH), "b": (4,)}, lambda w: Linear(w("w"), w("b")),
        lambda values, named: functional.linear(values, named["w"], named["b"]),
    ),
    "norm": Case(
        {"w": (WIDTH,), "b": (WIDTH,)}, lambda w: LayerNorm(w("w"), w("b"), 0.1),
        lambda values, named: functional.layer_norm(values, (WIDTH,), named["w"], named["b"], 0.1),
    ),
    "gelu": Case({"w": (1,)}, lambda w: Gelu(), lambda values, named: functional.gelu(values) + 0 * named["w"]),
    "residual": Case(
        {"w": (WIDTH, WIDTH), "b": (WIDTH,)}, lambda w: Residual(Linear(w("w"), w("b")), Gelu()),
        lambda values, named: values + functional.gelu(functional.linear(values, named["w"], named["b"])),
    ),
    "attention": Case(PROJECTION, lambda w: Attention(Linear(w("w"), w("b")), HEADS, TOKENS), by_all),
    "attention of the first": Case(PROJECTION, first_attention, by_first),
}  # fmt: skip


def drawn(shapes: dict[str, tuple[int, ...]], seed: int) -> Values:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}


def vjp(function: Callable[[Tensor, Values], Tensor], values: Tensor, named: Values, outer: Tensor) -> list[Tensor]:
    """Derivatives by the values and by each tensor of weights."""
    leaves = [values, *named.values()]
    leaves = [leaf if leaf.requires_grad else leaf.clone().requires_grad_() for leaf in leaves]
    with torch.enable_grad():
        made = function(leaves[0], dict(zip(named, leaves[1:], strict=True)))
        return list(torch.autograd.grad(made, leaves, outer, create_graph=True))


def jvp(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], moved: tuple[Tensor, ...]) -> Tensor:
    """The derivative along a direction."""
    with torch.enable_grad():
        return torch.autograd.functional.jvp(function, inputs, moved)[1]


def weights_of(values: Values) -> tuple[Weights, Layout]:
    layout = Layout(tuple(values), tuple(tuple(value.shape) for value in values.values()))
    return Weights(layout.flatten(values), layout), layout


@pytest.mark.parametrize("name", CASES)
def test_the_passes_of_a_layer_are_its_derivatives(name: str) -> None:
    case = CASES[name]
    named, direction = drawn(case.shapes, 0), drawn(case.shapes, 1)
    shape = (EXAMPLES * TOKENS, WIDTH)
    given = drawn({"values": shape, "moved": shape}, 2)
    values, moved = given["values"], given["moved"]
    outputs = case.plain(values, named)
    outer, outer_moved = drawn({"outer": tuple(outputs.shape), "moved": tuple(outputs.shape)}, 3).values()

    by_values, *by_weights = vjp(case.plain, values, named, outer)
    by_values_moved = jvp(
        lambda values, outer, *others: vjp(case.plain, values, dict(zip(named, others, strict=True)), outer)[0],
        (values, outer, *named.values()), (moved, outer_moved, *direction.values()),
    )  # fmt: skip
    weights, layout = weights_of(named)
    with torch.no_grad():
        layer = case.layer(weights.__getitem__)
        torch.testing.assert_close(layer.forward(values), outputs)
        torch.testing.assert_close(layer.backward(outer), by_values)
        if name != "gelu":
            torch.testing.assert_close(weights.whole_gradient(), torch.cat([part.flatten() for part in by_weights]))
        weights.move(layout.flatten(direction))
        for _ in range(2):  # as often as wanted
            expected = jvp(
                lambda values, *others: case.plain(values, dict(zip(named, others, strict=True))),
                (values, *named.values()), (moved, *direction.values()),
            )  # fmt: skip
            torch.testing.assert_close(layer.forward_moved(moved), expected)
            torch.testing.assert_close(layer.backward_moved(outer_moved), by_values_moved)


def test_the_passes_of_patches_are_their_derivatives() -> None:
    shapes = {"class": (1, 1, WIDTH), "places": (1, TOKENS, WIDTH), "w": (WIDTH, 3, 2, 2), "b": (WIDTH,)}
    named, direction = drawn(shapes, 0), drawn(shapes, 1)
    images = drawn({"images": (EXAMPLES, 3, 4, 4)}, 2)["images"]

    def plain(images: Tensor, named: Values) -> Tensor:
        patches = functional.conv2d(images, named["w"], named["b"], 2).flatten(2).mT
        return (torch.cat([named["class"].expand(EXAMPLES, -1, -1), patches], 1) + named["places"]).flatten(0, 1)

    outer, outer_moved = drawn({"outer": (EXAMPLES * TOKENS, WIDTH), "moved": (EXAMPLES * TOKENS, WIDTH)}, 3).values()

    _, *by_weights = vjp(plain, images, named, outer)
    by_images_moved = jvp(
        lambda outer, *others: vjp(plain, images, dict(zip(named, others, strict=True)), outer)[0],
        (outer, *named.values()), (outer_moved, *direction.values()),
    )  # fmt: skip
    weights, layout = weights_of(named)
    with torch.no_grad():
        front = Patches(*(weights[name] for name in ("w", "b", "class", "places")))
        torch.testing.assert_close(front.forward(images), plain(images, named))
        front.backward(outer)
        torch.testing.assert_close(weights.whole_gradient(), torch.cat([part.flatten() for part in by_weights]))
        weights.move(layout.flatten(direction))
        moved = jvp(
            lambda *others: plain(images, dict(zip(named, others, strict=True))),
            tuple(named.values()), tuple(direction.values()),
        )  # fmt: skip
        torch.testing.assert_close(front.forward_moved(), moved)
        torch.testing.assert_close(front.backward_moved(outer_moved), by_images_moved)


def test_layers_of_a_chain_are_undone_in_reverse() -> None:
    weights, _ = weights_of(drawn({"w": (4, WIDTH), "b": (4,)}, 0))
    values = torch.ones(EXAMPLES * TOKENS, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        chain = Chain(Linear(weights["w"], weights["b"]), Gelu())
        assert chain.backward(chain.forward(values)).shape == first(values, 1).shape


@pytest.mark.parametrize("soft", [False, True])
def test_a_gradient_knows_its_derivative_by_images_and_targets_and_is_freed(
    soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RowModel("vit", (3, 8, 8), 5).to(torch.device("cpu"), torch.float64)
    assert model.evaluates_alone
    random = torch.Generator().manual_seed(0)
    weights = model.initial_weights([(0, 0), (0, 1)]).double()
    images = torch.rand(2, 3, 3, 8, 8, generator=random, dtype=torch.float64, requires_grad=True)
    shares = torch.rand(2, 3, 5, generator=random, dtype=torch.float64)
    targets = shares.requires_grad_() if soft else torch.randint(5, (2, 3), generator=random)
    inputs = [images, targets] if soft else [images]
    direction = torch.randn(weights.shape, generator=random, dtype=torch.float64)

    made = model.gradient(weights, images, targets, create_graph=True)
    by_inputs = torch.autograd.grad(made, inputs, direction, retain_graph=True)
    again = torch.autograd.grad(made, inputs, direction)
    # Weights that are differentiated by go through autograd.
    leaf = weights.clone().requires_grad_()
    known = model.gradient(leaf, images, targets, create_graph=True)
    torch.testing.assert_close(made, known)
    torch.testing.assert_close(by_inputs, torch.autograd.grad(known, inputs, direction))
    assert all(map(torch.equal, by_inputs, again))
    assert torch.equal(model.gradient(weights, images, targets), made.detach())

    gone = weakref.ref(made.grad_fn.next_functions[0][0])  # pyright: ignore[reportOptionalMemberAccess]
    del made
    gc.collect()
    assert gone() is None
