"""Networks of torchvision by name, and the changes that can be named behind any network."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from harness.base import limits
from harness.base.errors import UsageError
from harness.models import RowModel, build_module, group_norm
from harness.models.networks import is_own
from harness.own_sources import own_sources

SMALL = "torchvision:shufflenet_v2_x0_5+group_norm"


def test_rows_have_the_gradients_of_the_network_itself() -> None:
    model = RowModel(SMALL, (3, 32, 32), 5).to(torch.device("cpu"), torch.float64)
    weights = model.initial_weights([(0, 0), (0, 1)]).double()
    images, labels = torch.rand(2, 2, 3, 32, 32).double(), torch.tensor([[0, 1], [4, 2]])
    made = model.gradient(weights, images, labels)
    for row in range(2):
        module = model.plain(weights[row])
        loss = nn.functional.cross_entropy(module(images[row]), labels[row])
        truth = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        assert (made[row] - truth).norm() < 1e-6 * truth.norm()


def test_it_has_the_layers_of_torchvision_and_the_classes_of_the_data() -> None:
    from torchvision.models import squeezenet1_1

    made = build_module("torchvision:squeezenet1_1+no_dropout", (3, 64, 64), 7, seed=0)
    assert made(torch.rand(2, 3, 64, 64)).shape == (2, 7)
    truth = squeezenet1_1(weights=None, num_classes=7)
    assert {name: value.shape for name, value in made.state_dict().items()} == {
        name: value.shape for name, value in truth.state_dict().items()
    }
    assert is_own("torchvision:squeezenet1_1") and own_sources(SMALL, "").keys() == {"model_source"}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet18", (3, 32, 32), "model 'resnet18' is torchvision's; name it torchvision:resnet18$"),
        ("torchvision:resnet19", (3, 32, 32), "unknown network 'resnet19'.*did you mean torchvision:resnet18 or "),
        ("torchvision:zzzzzz", (3, 32, 32), "unknown network 'zzzzzz'.*list_models"),
        (
            "torchvision:mobilenet_v2",
            (3, 32, 32),
            r"active dropout.*name the model torchvision:mobilenet_v2\+no_dropout",
        ),
        ("torchvision:convnext_tiny", (3, 32, 32), r"active dropout.*torchvision:convnext_tiny\+no_dropout"),
        ("torchvision:squeezenet1_1+no_dropout", (3, 8, 8), "too small; give larger images, or choose another --model"),
        ("torchvision:squeezenet1_1", (1, 28, 28), "takes images of 3 colours, not of 1; use --dataset cifar10"),
        ("torchvision:vit_b_16", (3, 32, 64), "takes square images, not 32x64"),
        ("torchvision:resnet18+groupnorm", (3, 32, 32), r"unknown change 'groupnorm'.*resnet18\+group_norm\?"),
        ("lenet+zzzzzz", (1, 12, 12), "unknown change 'zzzzzz'; known: group_norm, no_dropout"),
        ("lenet+group_norm", (1, 12, 12), r"'lenet\+group_norm': there is no BatchNorm.*leave \+group_norm out"),
        ("lenet+no_dropout", (1, 12, 12), r"there is no dropout.*leave \+no_dropout out"),
        ("lenett+no_dropout", (1, 12, 12), "unknown model 'lenett'; did you mean 'lenet'"),
    ],
)
def test_refused_names(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        RowModel(name, shape, 4)
    assert "\n" not in str(caught.value)


def test_group_norm_takes_the_place_of_every_batch_norm_and_keeps_its_weights() -> None:
    network = nn.Sequential(nn.Conv2d(1, 48, 1), nn.Sequential(nn.BatchNorm2d(48)), nn.BatchNorm2d(6, affine=False))
    nn.init.constant_(network[1][0].weight, 0.5), nn.init.constant_(network[1][0].bias, 2.0)
    changed = group_norm(network)
    assert changed is network
    inner, outer = changed[1][0], changed[2]
    assert isinstance(inner, nn.GroupNorm) and isinstance(outer, nn.GroupNorm)
    assert (inner.num_groups, outer.num_groups) == (16, 2)  # both divide 32 and the channels
    assert inner.weight[0].item() == 0.5 and inner.bias[0].item() == 2.0 and outer.weight is None
    values = torch.rand(3, 48, 4, 4)
    alone = torch.cat([inner(value[None]) for value in values])
    torch.testing.assert_close(inner(values), alone)
    assert isinstance(group_norm(nn.BatchNorm1d(4)), nn.GroupNorm)


def test_a_network_that_memory_does_not_hold_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 10_000_000)
    with pytest.raises(UsageError, match=r"trying model 'torchvision:.* GB of memory.*a smaller network"):
        RowModel(SMALL, (3, 32, 32), 5)


def test_torchvision_is_loaded_only_where_it_is_named() -> None:
    said = "from harness.models import build_module; import sys; build_module('lenet', (1, 8, 8), 4, 0); "
    code = said + "print('torchvision' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
