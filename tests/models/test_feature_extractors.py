"""Fixed maps before the trained layers: unit length, principal components, frozen networks."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.base.errors import UsageError
from harness.models import Frozen, RowModel
from harness.models.extractor_networks import PrincipalComponents, random_filters
from harness.models.feature_extractor import UnitLength

OWN = '''
"""A user's frozen networks: one that is a chain of known layers, one that is not."""
from torch import nn
from harness.models import Frozen

def chain(image_shape, classes):
    features = nn.Sequential(nn.Conv2d(1, 3, 5, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 6))
    return nn.Sequential(Frozen(features), nn.Linear(6, classes))

def normalised(image_shape, classes):
    features = nn.Sequential(nn.Conv2d(1, 3, 5), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(192, 6))
    return nn.Sequential(Frozen(features), nn.Linear(6, classes))
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "frozen_networks_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


def test_unit_length() -> None:
    values = torch.randn(5, 7)
    values[2] = 0
    lengths = UnitLength()(values).norm(dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 0, 1, 1], abs=1e-5)
    leaf = values.clone().requires_grad_(True)
    UnitLength()(leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


def correlated(count: int) -> torch.Tensor:
    """Images (N, 1, 3, 4) that vary in three directions by far the most."""
    random = torch.Generator().manual_seed(0)
    strong = torch.randn(count, 3, generator=random) * torch.tensor([9.0, 5.0, 2.0])
    axes = torch.linalg.qr(torch.randn(12, 3, generator=random)).Q
    return (strong @ axes.mT + 0.01 * torch.randn(count, 12, generator=random) + 4).reshape(count, 1, 3, 4)


def test_principal_components_are_those_of_the_data() -> None:
    from sklearn.decomposition import PCA

    images = correlated(5000)
    extractor = PrincipalComponents(12, 3)
    assert extractor(images[:2]).isnan().all()
    extractor.fit(images)
    ours, theirs = extractor(images), torch.from_numpy(PCA(3).fit_transform(images.flatten(1).double().numpy()))
    assert ours.std(0).tolist() == pytest.approx([9, 5, 2], rel=0.1)
    torch.testing.assert_close(ours.double().abs(), theirs.abs(), atol=1e-3, rtol=1e-3)
    gathered = extractor.directions.gather(1, extractor.directions.abs().argmax(1, keepdim=True))
    assert (gathered > 0).all()


def test_a_model_of_components_needs_data_and_says_that_no_epsilon_covers_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'pca_mlp' is fitted to training data, which is not done here"):
        RowModel("pca_mlp", (1, 3, 4), 2)
    model = RowModel("pca_mlp", (1, 3, 4), 2, correlated(100))
    assert model.uncovered is not None and "no epsilon covers it" in model.uncovered
    assert RowModel("frozen_linear", (1, 8, 8), 2, None).uncovered is None
    other = RowModel("pca_mlp", (1, 3, 4), 2, correlated(100).flip(2))
    images, weights = correlated(6).reshape(2, 3, 1, 3, 4), model.initial_weights([(0, 0), (0, 1)])
    assert not torch.allclose(other.logits(weights, images), model.logits(weights, images), atol=1e-3)
    torch.save(model.state(weights[0]), tmp_path / "kept.pt")
    assert torch.equal(other.load_weights(tmp_path / "kept.pt"), weights[0])
    assert torch.equal(other.logits(weights, images), model.logits(weights, images))


@pytest.mark.parametrize("factory", ["chain", "normalised"])
def test_a_frozen_network_of_the_users_own(factory: str) -> None:
    model = RowModel(f"frozen_networks_of_a_user:{factory}", (1, 12, 12), 4)
    assert model.layout.names == ("1.weight", "1.bias") and model.last_linear() == ("1.weight", "1.bias")
    weights = model.initial_weights([(0, 0), (0, 1)])
    images, labels = torch.rand(2, 3, 1, 12, 12), torch.tensor([[0, 1, 2], [3, 0, 1]])
    made = model.example_gradients(weights, images, labels, None, 3.0).mean()
    for row in range(2):
        module = model.plain(weights[row])
        loss = nn.functional.cross_entropy(module(images[row]), labels[row])
        expected = torch.autograd.grad(loss, list(module.parameters()))
        assert torch.allclose(made[row], torch.cat([each.flatten() for each in expected]), atol=1e-6)
    leaf = images.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(model.gradient(weights, leaf, labels, create_graph=True).square().sum(), leaf)
    assert slope.abs().max() > 0


def test_frozen_weights_are_buffers_and_no_gradient_reaches_them() -> None:
    network = nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2))
    frozen = Frozen(network)
    assert list(frozen.parameters()) == [] and not frozen.network.training
    assert {"network.0.weight", "network.1.weight", "network.1.running_mean"} <= set(dict(frozen.named_buffers()))


def test_a_frozen_chains_rows_do_not_depend_on_each_other() -> None:
    torch.manual_seed(0)
    frozen = Frozen(nn.Sequential(nn.Flatten(), nn.Linear(20, 7), nn.Sigmoid()))
    values = torch.randn(40, 1, 1, 4, 5)
    whole = frozen.rows(values)
    torch.testing.assert_close(whole[:, 0], frozen(values[:, 0]))
    assert all(torch.equal(frozen.rows(values[:rows]), whole[:rows]) for rows in range(2, 40))


def test_the_random_filters_are_the_same_in_every_run() -> None:
    first, state = random_filters(3), torch.random.get_rng_state()
    torch.manual_seed(5)
    images = torch.rand(2, 3, 9, 10)
    assert torch.equal(first(images), random_filters(3)(images)) and first(images).shape == (2, 1024)
    assert float(first.network[0].weight.std()) == pytest.approx(75**-0.5, rel=0.05)
    torch.random.set_rng_state(state)
