"""A transformer's layers for rows together: the derivatives that are written out, and who is evaluated so."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models.vision_transformer import VisionTransformer

from harness.models import RowModel
from harness.models.changes import precode
from harness.models.imprint import WithInsertedModule
from harness.models.rows import EvaluatesRows, OwnRows, ways_of
from harness.models.transformer import gelu, torchvision_transformer, vit


def test_the_rectifier_s_derivatives() -> None:
    values = torch.linspace(-6, 6, 97, dtype=torch.float64, requires_grad=True)
    outer, further = torch.cos(3 * values.detach()).requires_grad_(), torch.sin(5 * values.detach())
    found = []
    for function in (gelu, functional.gelu):
        (slope,) = torch.autograd.grad(function(values), values, outer, create_graph=True)
        found.append([function(values), slope, *torch.autograd.grad(slope, (outer, values), further)])
    for made, truth in zip(*found, strict=True):
        torch.testing.assert_close(made, truth)


def test_only_the_network_itself_says_how() -> None:
    network = vit((3, 8, 8), 5)
    assert isinstance(network, EvaluatesRows) and not isinstance(nn.Linear(2, 2), EvaluatesRows)
    assert ways_of(network, 10**6, joint=False)[0].itself
    for changed in (WithInsertedModule(nn.Identity(), network), precode(vit((3, 8, 8), 5))):
        assert not any(way.itself for way in ways_of(changed, 10**6, joint=False))


def test_many_images_of_a_row_are_apart() -> None:
    model = RowModel("vit", (1, 8, 8), 3)
    assert isinstance(model._rows, OwnRows)
    weights, images = model.initial_weights([(0, 0), (0, 1)]), torch.rand(2, 4, 1, 8, 8)
    whole = model.logits(weights, images)
    for one in range(4):
        torch.testing.assert_close(model.logits(weights, images[:, one : one + 1])[:, 0], whole[:, one])


def of_torchvision(**changes: Any) -> VisionTransformer:
    settings = {"image_size": 8, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    return VisionTransformer(**settings | {"num_classes": 5} | changes)


@pytest.mark.parametrize(
    "changes", [{}, {"norm_layer": partial(nn.LayerNorm, eps=0.1)}, {"patch_size": 2}, {"num_layers": 3}]
)
def test_torchvision_s_is_evaluated_for_rows(changes: dict[str, Any]) -> None:
    """Rows with weights of their own, as the network itself computes each."""
    network, generator = of_torchvision(**changes).double(), torch.Generator().manual_seed(0)
    own = torchvision_transformer(network)
    assert own is not None and ways_of(network, 10**6, joint=False)[0].itself
    assert not ways_of(network, 10**8, joint=False)[0].itself
    named = {
        name: torch.randn(3, *part.shape, generator=generator, dtype=torch.float64)
        for name, part in network.named_parameters()
    }
    images = torch.rand(3, 2, 3, 8, 8, generator=generator, dtype=torch.float64)
    made = own.row_logits(named, images, gradient_once=False)
    for row, logits in enumerate(made):
        alone = torch.func.functional_call(network, {name: part[row] for name, part in named.items()}, (images[row],))
        torch.testing.assert_close(logits, alone)


CHANGES: dict[str, Any] = {
    "encoder.layers.encoder_layer_0.mlp.1": nn.GELU("tanh"), "encoder.layers.encoder_layer_1.ln_2.eps": 0.1,
    "conv_proj": nn.Conv2d(3, 8, 4, 4, bias=False), "heads.more": nn.Tanh(), "heads": nn.Linear(8, 5),
    "encoder.layers.encoder_layer_1.self_attention.bias_k": nn.Parameter(torch.zeros(1, 1, 8)),
    "encoder.layers.encoder_layer_1": nn.Identity(), "encoder.layers.encoder_layer_0.mlp": nn.Linear(8, 8),
    "encoder": nn.Identity(),
}  # fmt: skip


@pytest.mark.parametrize("place", CHANGES)
def test_one_that_was_changed_is_not(place: str) -> None:
    network = of_torchvision()
    parent, _, name = place.rpartition(".")
    setattr(network.get_submodule(parent), name, CHANGES[place])
    assert torchvision_transformer(network) is None


def test_nor_is_one_with_another_head_or_stem() -> None:
    assert torchvision_transformer(of_torchvision(representation_size=4)) is None
    assert torchvision_transformer(vit((3, 8, 8), 5)) is None
