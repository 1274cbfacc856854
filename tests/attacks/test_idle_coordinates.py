"""Weights that no image meets are left out of an attack, which does the same without them, and less."""

import sys
import types
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import harness.models.rows as ways
from harness.attacks import ATTACKS, run_attack
from harness.attacks.engine import as_it_is, without_idle_coordinates
from harness.attacks.map import MaximumAPosteriori
from harness.base.building import build
from harness.models.row_layers import border_of, without_idle_weights
from harness.observation import Noise, Observation
from harness.testing import undefended
from harness.testing.attacks import digits_prior

Digits = Callable[..., tuple[Tensor, Tensor]]
SHAPE = (1, 8, 8)


class Shrinks(nn.Module):
    """Of the second kernel rows and columns meet only padding, of the third all but the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 5, 4, 2), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 6, 3, 2, 1), nn.Tanh(),
            nn.Conv2d(6, 6, (5, 3), padding=(2, 1), bias=False), nn.Tanh(),
        )  # fmt: skip
        self.head = nn.Linear(6, 10)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).flatten(1))


class Weighs(Shrinks):
    """Uses all weights of a layer in a way of its own."""

    def forward(self, images: Tensor) -> Tensor:
        kernels = self.layers[5].weight
        assert isinstance(kernels, Tensor)
        return super().forward(images) * kernels.square().sum()


class Reshapes(Shrinks):
    """Reckons with the shape that it gave a layer."""

    def forward(self, images: Tensor) -> Tensor:
        kernels = self.layers[5].weight
        assert isinstance(kernels, Tensor)
        return super().forward(images) + 0 * kernels.reshape(6, 6 * 5 * 3).sum()


class Twice(nn.Module):
    """A layer that sees images of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 1, 3, 2, 1), nn.Linear(1, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.first(self.first(self.first(self.first(images)))).flatten(1))


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch, digits: Digits) -> Observation:
    """Two victims of such a network, whose rows are evaluated one at a time."""
    monkeypatch.setattr(ways, "_LARGE", 0)
    module = types.ModuleType("shrinking_networks")
    module.make = lambda shape, classes: Shrinks()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "shrinking_networks", module)
    return undefended(*digits(2), model="shrinking_networks:make")


def test_the_network_without_them_is_the_same(observed: Observation) -> None:
    found = without_idle_weights(observed.model.plain_module, SHAPE)
    assert found is not None
    shapes = {name: tuple(one.shape) for name, one in found[0].named_parameters() if one.dim() == 4}
    assert list(shapes.values()) == [(4, 1, 5, 5), (6, 4, 2, 2), (6, 6, 1, 1)]
    gone = torch.ones(observed.target.shape[1], dtype=torch.bool)
    gone[found[1]] = False
    assert gone.sum() == 6 * 4 * 5 + 6 * 6 * 14 and (observed.target[:, gone] == 0).all()
    assert (observed.target[:, found[1]] != 0).float().mean() > 0.9


@pytest.mark.parametrize("network", [Weighs(), Reshapes(), Twice(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
def test_weights_that_may_matter_stay(network: nn.Module) -> None:
    assert without_idle_weights(network, SHAPE) is None


@pytest.mark.parametrize("name", ["inverting_gradients", pytest.param("dlg", marks=pytest.mark.slow), "cpl"])
def test_an_attack_does_the_same_without_them(
    name: str, observed: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = build(ATTACKS, name, {"max_iterations": 8})
    lean = run_attack(attack, observed)
    with monkeypatch.context() as patch:
        patch.setattr("harness.attacks.engine.without_idle_coordinates", lambda *_: as_it_is)
        whole = run_attack(attack, observed)
    torch.testing.assert_close(lean.loss, whole.loss, rtol=1e-3, atol=1e-6)
    # L-BFGS magnifies the rounding, which differs from one processor to the next.
    torch.testing.assert_close(lean.images, whole.images, rtol=1e-2, atol=5e-3)


def test_a_likelihood_of_noise_is_the_same_without_them(observed: Observation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that was read there adds the same number to the loss of whatever image."""
    attack, seed = MaximumAPosteriori(max_iterations=8), torch.Generator().manual_seed(0)
    noise = torch.randn(observed.target.shape, generator=seed)
    noisy = replace(
        observed, target=observed.target + 0.01 * noise, noise=Noise("gaussian", 0.01), prior=digits_prior()
    )
    kept = without_idle_coordinates(attack, noisy)(noisy)
    assert kept.target.shape[1] == kept.model.layout.total < noisy.target.shape[1]
    lean = run_attack(attack, noisy)
    with monkeypatch.context() as patch:
        patch.setattr("harness.attacks.engine.without_idle_coordinates", lambda *_: as_it_is)
        whole = run_attack(attack, noisy)
    torch.testing.assert_close(lean.images, whole.images, rtol=1e-2, atol=5e-3)
    more, fewer = noisy.target.square().sum(1), kept.target.square().sum(1)
    torch.testing.assert_close(whole.loss - lean.loss, (more - fewer) / 2 / 0.01**2, rtol=1e-2, atol=0.1)


def test_what_was_read_there_stays(observed: Observation, digits: Digits) -> None:
    """Noise, for example, but where all that is done with it is a likelihood under one level; and nothing is left out
    of small networks, where rows are evaluated together."""
    plain, informed, prior = build(ATTACKS, "cpl", {}), MaximumAPosteriori(), digits_prior()
    seen = without_idle_coordinates(plain, observed)(observed)
    assert seen.target.shape[1] == seen.weights.shape[1] == seen.model.layout.total < observed.target.shape[1]
    assert without_idle_coordinates(plain, undefended(*digits(2))) is as_it_is
    for attack, facts in (
        (plain, {"target": observed.target + 1}),
        (informed, {"target": observed.target + 1, "prior": prior}),
        (plain, {"noise": Noise("gaussian", 0.01), "prior": prior}),
        (informed, {"noise": Noise("gaussian", observed.target[0].abs()), "prior": prior}),
        (informed, {"noise": Noise("laplace", 0.01), "prior": prior}),
        (informed, {"noise": Noise("gaussian", None), "prior": prior}),
    ):
        assert without_idle_coordinates(attack, replace(observed, **facts)) is as_it_is


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "border"),
    [
        ((1, 1), 3, 1, 1, (1, 1, 1, 1)),
        ((1, 1), 7, 2, 3, (3, 3, 3, 3)),
        ((2, 2), 3, 2, 1, (1, 0, 1, 0)),
        ((2, 2), 3, 1, 1, (0, 0, 0, 0)),
        ((2, 2), 5, 1, 2, (1, 1, 1, 1)),
        ((1, 4), 3, 1, 1, (1, 1, 0, 0)),
        ((3, 3), 3, 2, 2, (0, 0, 0, 0)),
        ((8, 8), 3, 1, 1, (0, 0, 0, 0)),
        ((2, 3), 2, 1, 0, (0, 0, 0, 0)),
        ((1, 1), 2, 1, 2, (0, 0, 0, 0)),
    ],
)
def test_borders_that_meet_only_padding(
    size: tuple[int, int], kernel: int, stride: int, padding: int, border: tuple[int, ...]
) -> None:
    assert border_of(size, nn.Conv2d(3, 4, kernel, stride, padding))[0] == border
