"""A module before a network: the chain of layers computes what the modules do, and the network keeps its weights."""

from functools import partial

import pytest
import torch

from harness.models import RowModel
from harness.models.example_gradients import FactoredGradients
from harness.models.imprint import Imprint

SHAPE = (1, 8, 8)


@pytest.mark.parametrize("network", ["mlp", "lenet", "cnn"])
@pytest.mark.parametrize("clients", [1, 3])
def test_rows_are_what_the_modules_compute(network: str, clients: int) -> None:
    shape = (1, 12, 12) if network == "cnn" else SHAPE
    model = RowModel(network, shape, 10, front=partial(Imprint, bins=6, clients=clients, gain=2.0))
    random = torch.Generator().manual_seed(0)
    weights = model.initial_weights([(0, 0), (0, 1)])
    weights += 0.1 * torch.randn(weights.shape, generator=random)
    images, labels = torch.rand(2, 3, *shape, generator=random), torch.randint(10, (2, 3), generator=random)
    assert isinstance(model.example_gradients(weights, images, labels, None, 3), FactoredGradients)
    logits, factored = model.logits(weights, images), model.example_gradients(weights, images, labels, None, 3)
    each = model.per_example_gradients(weights, images, labels)
    torch.testing.assert_close(factored.mean(), each.mean(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(factored.materialise(), each, rtol=1e-4, atol=1e-6)
    for row in range(2):
        torch.testing.assert_close(logits[row], model.plain(weights[row])(images[row]), rtol=1e-4, atol=1e-5)


def test_the_network_behind_has_the_weights_it_has_alone_and_no_draw_is_made() -> None:
    before = torch.get_rng_state()
    inserted = RowModel("mlp", SHAPE, 10, front=partial(Imprint, bins=6, clients=2))
    alone, keys = RowModel("mlp", SHAPE, 10), [(0, 3), (1, 4)]
    own = inserted.initial_weights(keys)
    assert torch.equal(own[:, -alone.layout.total :], alone.initial_weights(keys))
    assert not own[:, : -alone.layout.total].any() and torch.equal(before, torch.get_rng_state())


def test_weights_of_the_network_are_loaded_behind_the_module(tmp_path) -> None:
    alone = RowModel("mlp", SHAPE, 10)
    weights = alone.initial_weights([(0, 7)])[0]
    torch.save(alone.state(weights), tmp_path / "weights.pt")
    loaded = RowModel("mlp", SHAPE, 10, front=partial(Imprint, bins=6)).load_weights(tmp_path / "weights.pt")
    assert torch.equal(loaded[-alone.layout.total :], weights)
