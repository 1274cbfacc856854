"""Imprint: images that fall into a bin alone come back to rounding errors, whatever is clipped."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, run_attack
from harness.attacks.bins import brightness, quantiles
from harness.base.building import build
from harness.base.errors import UsageError
from harness.observation import Clipping, Noise, Observation
from harness.testing import undefended

VICTIMS, BATCH, BINS = 3, 8, 64


def observed(digits: Callable[..., tuple[Tensor, Tensor]], prior_of: Callable[..., Observation]) -> Observation:
    images, labels = digits(VICTIMS, BATCH)
    tamper = build(ATTACKS, "imprint", {"bins": BINS}).tamper(1, BATCH)
    seen = undefended(images, labels, model="mlp", tamper=tamper)
    return replace(seen, prior=prior_of(1).prior)


def alone(images: Tensor, observation: Observation) -> Tensor:
    """Which images (V, n) fall into a bin that no other of their batch falls into."""
    values = (images.flatten(2) @ brightness(observation.model)).double()
    named = observation.model.layout.split(observation.weights)
    cutoffs = -named["front.linear.bias"][0].double()
    bins = torch.searchsorted(cutoffs, values)
    return torch.stack([(row[:, None] == row).sum(1) == 1 for row in bins])


def errors(observation: Observation, images: Tensor) -> Tensor:
    """The RMSE (V, n) from each true image to the nearest that came back."""
    made = run_attack(build(ATTACKS, "imprint", {"bins": BINS}), observation).images
    return torch.cdist(images.flatten(2), made.flatten(2)).amin(2) / images[0, 0].numel() ** 0.5


def test_an_image_alone_in_its_bin_comes_back(
    digits: Callable[..., tuple[Tensor, Tensor]], victims: Callable[..., Observation]
) -> None:
    observation, images = observed(digits, victims), digits(VICTIMS, BATCH)[0]
    own = alone(images, observation)
    assert 0.6 < own.float().mean() < 1  # the test would be empty if all, or none, shared a bin
    assert (errors(observation, images)[own] < 1e-3).all()
    assert (errors(observation, images)[~own] > 1e-3).any()


@pytest.mark.parametrize("what", ["clipped", "noisy"])
def test_where_biases_say_nothing_a_bin_says_how_bright_its_image_is(
    what: str, digits: Callable[..., tuple[Tensor, Tensor]], victims: Callable[..., Observation]
) -> None:
    observation, images = observed(digits, victims), digits(VICTIMS, BATCH)[0]
    target = observation.target.clone()
    observation.model.layout.split(target)["front.linear.bias"].mul_(0.01)  # a tensor clipped by itself
    known = {"clipping": Clipping(1.0, "layer", "example")} if what == "clipped" else {"noise": Noise("gaussian", 1e-9)}
    plain, told = (replace(observation, target=target, **facts) for facts in ({}, known))
    own = alone(images, observation)
    assert (errors(told, images)[own] < 0.05).float().mean() > 0.9
    assert (errors(plain, images)[own] > 0.2).all()


def test_gain_makes_gradients_steeper_and_changes_nothing_else(digits: Callable[..., tuple[Tensor, Tensor]]) -> None:
    images, labels = digits(2, 4)
    plain, steep = (
        undefended(images, labels, model="mlp", tamper=build(ATTACKS, "imprint", {"gain": gain}).tamper(1, 4))
        for gain in (1.0, 100.0)
    )
    ours, theirs = (one.model.layout.split(one.target) for one in (steep, plain))
    for name, values in theirs.items():
        factor = 100.0 if name.startswith("front.") else 1.0
        torch.testing.assert_close(ours[name], factor * values, rtol=2e-3, atol=1e-6 * factor)


def test_cutoffs_are_below_equal_shares_of_public_values() -> None:
    values = torch.rand(4000, generator=torch.Generator().manual_seed(0)) ** 2
    cutoffs = quantiles(values, 16)
    assert cutoffs[0] == 0 and (values[:, None] > cutoffs).sum(0).diff().abs().sub(250).abs().max() <= 1


def test_fewer_bins_than_images_are_refused() -> None:
    with pytest.raises(UsageError, match=r"at most 16 images apart.*bins=256"):
        build(ATTACKS, "imprint", {"bins": 16}).tamper(4, 8)
