"""Losses of single examples: the library's, and independent of the batch around them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.models.example_gradients import example_losses


def with_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    losses = example_losses(leaf, labels)
    return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]


def drawn(batch: int, classes: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(3, batch, classes, generator=random), torch.randint(classes, (3, batch), generator=random)


@pytest.mark.parametrize(("batch", "classes"), [(1, 2), (5, 10), (16, 62), (33, 10)])
def test_they_are_cross_entropy(batch: int, classes: int) -> None:
    logits, labels = drawn(batch, classes)
    made = example_losses(logits, labels)
    torch.testing.assert_close(
        made.flatten(), functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    )


@pytest.mark.parametrize("batch", [1, 7, 15, 16, 17, 31, 38, 100])
@pytest.mark.parametrize("classes", [2, 10, 62])
def test_an_example_does_not_depend_on_the_batch(batch: int, classes: int) -> None:
    logits, labels = drawn(120, classes)
    for whole, part in zip(
        with_gradient(logits, labels), with_gradient(logits[:, :batch], labels[:, :batch]), strict=True
    ):
        assert torch.equal(whole[:, :batch], part)
