"""A transformer's layers for rows together: the derivatives that are written out, and who is evaluated so."""

import torch
from torch import nn
from torch.nn import functional

from harness.models import RowModel
from harness.models.imprint import Fronted
from harness.models.row_transformer import gelu
from harness.models.rows import EvaluatesRows, OwnRows
from harness.models.vision_transformer import vit
from harness.models.ways import ways_of


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
    behind = Fronted(nn.Identity(), network)
    assert not any(way.itself for way in ways_of(behind, 10**6, joint=False))


def test_many_images_of_a_row_are_apart() -> None:
    model = RowModel("vit", (1, 8, 8), 3)
    assert isinstance(model._rows, OwnRows)
    weights, images = model.initial_weights([(0, 0), (0, 1)]), torch.rand(2, 4, 1, 8, 8)
    whole = model.logits(weights, images)
    for one in range(4):
        torch.testing.assert_close(model.logits(weights, images[:, one : one + 1])[:, 0], whole[:, one])
