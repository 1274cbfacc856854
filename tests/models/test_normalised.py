"""Images that are scaled outside of a network: the scaling is a change of the network, whatever evaluates it."""

import pytest
import torch
from torch.nn import functional

from harness.base.errors import UsageError
from harness.models import RowModel, build_module

NAME = "normalised(0.5/0.4/0.3|0.25/0.2/0.1)"
MEAN, DEVIATION = (torch.tensor(one)[:, None, None] for one in ([0.5, 0.4, 0.3], [0.25, 0.2, 0.1]))


@pytest.mark.parametrize(
    "network", ["lenet", "logistic", "resnet8+group_norm", "vit", "torchvision:squeezenet1_1+no_dropout"]
)
def test_the_gradients_are_those_of_the_network_on_scaled_images(network: str) -> None:
    size = 64 if "squeezenet" in network else 16
    random = torch.Generator().manual_seed(1)
    images, labels = torch.rand(2, 1, 3, size, size, generator=random), torch.tensor([[1], [3]])
    model = RowModel(f"{network}+{NAME}", (3, size, size), 5)
    weights = model.initial_weights([(1,), (2,)])
    made = model.gradient(weights, images, labels)
    logits = model.logits(weights, images)
    plain = RowModel(network, (3, size, size), 5)
    own = (images - MEAN) / DEVIATION
    torch.testing.assert_close(logits, plain.logits(weights, own))
    torch.testing.assert_close(made, plain.gradient(weights, own, labels), atol=1e-5, rtol=1e-4)
    each, theirs = (one.per_example_gradients(weights, given, labels) for one, given in ((model, images), (plain, own)))
    torch.testing.assert_close(each, theirs, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(made, plain.gradient(weights, images, labels), atol=1e-3, rtol=1e-2)
    module = build_module(f"{network}+{NAME}", (3, size, size), 5, seed=0)
    assert set(module.state_dict()) == set(build_module(network, (3, size, size), 5, seed=0).state_dict())


@pytest.mark.parametrize("change", ["normalised", "normalised(a|b)", "normalised(0.5|0)", "normalised(0.5/0.5|0.5)"])
def test_a_scaling_that_says_nothing_is_refused(change: str) -> None:
    with pytest.raises(UsageError, match=r"a scaling is a mean and a deviation above 0.*write lenet\+normalised"):
        build_module(f"lenet+{change}", (1, 12, 12), 5, seed=0)


def test_as_many_channels_as_images_have_are_scaled() -> None:
    with pytest.raises(UsageError, match="2 channels and images have 3"):
        module = build_module("lenet+normalised(0.5/0.5|0.5/0.5)", (3, 12, 12), 5, seed=0)
        functional.cross_entropy(module(torch.rand(1, 3, 12, 12)), torch.tensor([1]))
