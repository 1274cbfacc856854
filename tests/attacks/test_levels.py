"""Noise whose level follows the gradient: its likelihood by hand, and that it tells victims apart, however strong."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from harness.attacks import Attack, Identifier, run_attack
from harness.attacks.identify import Identify
from harness.attacks.levels import Levels, _regressed
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.residual import improbability, unread_level
from harness.attacks.slope import Slope
from harness.base.errors import UsageError
from harness.base.vectors import spread
from harness.observation import Noise, NoiseLevel, Observation
from harness.testing import digits, undefended
from harness.testing.attacks import digits_prior

ROWS = 96
LEVELS = {"largest": NoiseLevel(600.0, "largest", 0.1, 32.0), "each": NoiseLevel(120.0, "each")}


def hidden(level: NoiseLevel, rows: int = ROWS, model: str = "logistic") -> tuple[Observation, Tensor, Tensor]:
    """Digits under noise that is hundreds of times their gradients, of a level that follows them; images, labels."""
    images, labels = digits(rows)
    clean = undefended(images, labels, model=model, prior=digits_prior())
    sizes = clean.model.layout.sizes
    drawn = torch.randn(clean.target.shape, generator=torch.Generator().manual_seed(3))
    noise = spread(level.deviations(clean.target, sizes), sizes).float() * drawn
    return replace(clean, target=clean.target + noise, noise=Noise("gaussian", None, level=level)), images, labels


def place_among_alike(apart: Tensor, labels: Tensor) -> float:
    """Mean place of rows' own columns among those of their class: 0 nearest, 0.5 by chance."""
    ranks = []
    for row, label in enumerate(labels[:, 0]):
        others = apart[row, (labels[:, 0] == label) & (torch.arange(len(labels)) != row)]
        ranks.append(float((others < apart[row, row]).double().mean()))
    return sum(ranks) / len(ranks)


def of_images(made: Tensor, images: Tensor) -> Tensor:
    return (made.flatten(1)[:, None] - images.flatten(1)[None]).square().sum(2)


def test_the_level_of_a_gradient_by_hand() -> None:
    gradients = torch.tensor([[3.0, 4.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    each = NoiseLevel(2.0, "each", 0.5, 4.0).deviations(gradients, (2, 2))
    torch.testing.assert_close(each, torch.tensor([[8.0, 2.0], [1.0, 1.0]]).double())
    largest = NoiseLevel(2.0, "largest").times(0.5).deviations(gradients, (2, 2))
    torch.testing.assert_close(largest, torch.tensor([[5.0, 5.0], [0.0, 0.0]]).double(), atol=1e-12, rtol=0)
    whole = NoiseLevel(2.0, "whole").deviations(gradients, (2, 2))[0]
    torch.testing.assert_close(whole, torch.full((2,), 2 * 26**0.5).double())
    gradients.requires_grad_(True)
    (slope,) = torch.autograd.grad(NoiseLevel(1.0, "each").deviations(gradients, (2, 2)).sum(), gradients)
    torch.testing.assert_close(slope[0], torch.tensor([0.6, 0.8, 1.0, 0.0]))
    assert slope.isfinite().all()


def test_a_level_goes_with_its_noise() -> None:
    level = NoiseLevel(6.0, "largest")
    noise = Noise("gaussian", None, level=level)
    assert noise.averaged(4).level == noise.times(0.5).level == NoiseLevel(3.0, "largest")
    assert noise.plus(None) == noise and noise.plus(noise).level is None and noise.estimated
    assert noise.facts() != Noise("gaussian", None).facts() != noise.times(2).facts()
    with pytest.raises(UsageError, match="declare a NoiseLevel"):
        Noise("gaussian", None, level=3.0)  # type: ignore[arg-type]
    for law, deviation in (("gaussian", 0.1), ("laplace", None)):
        with pytest.raises(UsageError, match="Gaussian noise without a deviation only"):
            Noise(law, deviation, level=level)  # type: ignore[arg-type]


NONSENSE: list[tuple[Any, ...]] = [
    (-1.0, "each"), (math.nan, "each"), (math.inf, "each"), (1.0, "each", 2.0, 1.0), (1.0, "each", math.nan),
    (1.0, "all"), ("a", "each"), (None, "each"),
]  # fmt: skip


@pytest.mark.parametrize("values", NONSENSE, ids=str)
def test_nonsense_is_no_level(values: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match=r"least <= most|one of each, largest|with numbers"):
        NoiseLevel(*values)


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_candidates_are_as_probable_as_a_library_says(level: NoiseLevel) -> None:
    seen, images, labels = hidden(level, 4)
    candidates = undefended(images, labels, model="logistic", weights=seen.weights).target
    sizes = seen.model.layout.sizes
    densities = []
    for one in (candidates, candidates * 1.02):
        deviations = spread(level.deviations(one, sizes), sizes)
        densities.append(Normal(one.double(), deviations).log_prob(seen.target.double()).sum(1))
    ours = improbability(seen, candidates) - improbability(seen, candidates * 1.02)
    torch.testing.assert_close(ours, densities[1] - densities[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_identify_tells_the_truth_by_its_level(level: NoiseLevel) -> None:
    seen, images, labels = hidden(level)
    candidates = images[None, :, 0].expand(ROWS, -1, -1, -1, -1)
    found = {}
    blurred = replace(seen, noise=Noise("gaussian", None, "whole"))
    turned = replace(seen, target=seen.target.roll(1, 0))
    for name, one in (("level", seen), ("best level", blurred), ("another's", turned)):
        apart = torch.cat([
            Identify().distances(one.take(torch.tensor([row, row])), candidates[:2], labels[row].expand(2))[:1]
            for row in range(ROWS)
        ])  # fmt: skip
        found[name] = place_among_alike(apart, labels)
    print({name: round(place, 3) for name, place in found.items()})
    # 96 places by chance: mean .5, standard deviation .03.
    assert found["level"] < 0.2 and 0.38 < found["best level"] < 0.62 and 0.38 < found["another's"] < 0.62


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_levels_alone_tell_victims_apart(level: NoiseLevel) -> None:
    seen, images, labels = hidden(level)
    seen = replace(seen, labels=labels)
    result = run_attack(Levels(), seen)
    own, other = (place_among_alike(of_images(result.images.roll(by, 0), images), labels) for by in (0, 1))
    print(f"place: {own:.3f}, with another's image {other:.3f}")
    assert own < 0.4 and 0.38 < other < 0.62


@pytest.mark.slow
def test_classes_are_told_by_their_sizes() -> None:
    seen, _, labels = hidden(NoiseLevel(1.0, "each"), 48, model="mlp2")
    quiet = replace(seen, noise=None, target=undefended(*digits(48), model="mlp2", weights=seen.weights).target)
    for one, least in ((seen, 0.2), (quiet, 0.25)):
        found = Levels().labels(one)
        assert found is not None and float((found == labels).double().mean()) > least  # a tenth by chance
    assert torch.equal(Levels().labels(replace(seen, labels=labels)) + 0, labels)  # type: ignore[operator]


def test_classes_are_weighed_by_their_probability() -> None:
    """An image of each class alone, mixed by hand, is what is made where no label is known."""
    seen, _, _ = hidden(LEVELS["each"], 4)
    attack, images = Levels(), []
    mixed, likely = attack._told(seen)
    for label in range(seen.model.classes):
        alone, only = attack._told(replace(seen, labels=torch.full((4, 1), label)))
        assert only[:, label].isfinite().all() and only.isfinite().sum() == 4
        images.append(alone)
    assert likely.softmax(1).max() < 0.99
    torch.testing.assert_close(mixed, torch.einsum("rk,krd->rd", likely.softmax(1).float(), torch.stack(images)))


def test_the_regression_is_a_gaussian_given_what_was_read() -> None:
    """The mean of one Gaussian part given the other, and the density of that, from the same moments."""
    random = np.random.default_rng(0)
    images, lengths = random.normal(size=(50, 3)), random.normal(size=(2, 50, 4))
    lengths[..., :3] += 0.5 * images
    errors, read = random.uniform(0.1, 1, (2, 4)), random.normal(size=(2, 4))
    found, density = _regressed(*map(torch.from_numpy, (images, lengths, errors, read)))
    for row in range(2):
        moments = np.cov(np.hstack([images, lengths[row]]).T)
        own = moments[3:, 3:] + np.diag(errors[row] + 1e-6)
        off = read[row] - lengths[row].mean(0)
        expected = images.mean(0) + moments[:3, 3:] @ np.linalg.inv(own) @ off
        torch.testing.assert_close(found[row], torch.from_numpy(expected))
        exact = MultivariateNormal(torch.zeros(4).double(), torch.from_numpy(own)).log_prob(torch.from_numpy(off))
        torch.testing.assert_close(density[row] - 2 * np.log(2 * np.pi), exact)


def batch_of_two(seen: Observation) -> Observation:
    return replace(seen, examples=2)


def test_no_failure_to_reconstruct_counts_for_much() -> None:
    level = LEVELS["largest"]
    seen, images, labels = hidden(level)
    others: tuple[Attack, ...] = (Slope(), MaximumAPosteriori())
    assert all("as levels is" in str(attack.doubt(seen, images, labels)) for attack in others)
    assert "nothing else" in str(Levels().doubt(seen, images, labels))
    assert Identify().doubt(seen, images[:, 0], labels[:, 0]) is None
    wrong = replace(seen, noise=Noise("gaussian", None, level=level.times(0.8)))
    assert "about 1.2 times the noise" in str(Identify().doubt(wrong, images[:, 0], labels[:, 0]))
    more = replace(seen, noise=Noise("gaussian", None, level=level, unread=True))
    assert "reads all of it" in str(Identify().doubt(more, images[:, 0], labels[:, 0]))
    own = (Identifier.doubt(Identify(), one, images[:, 0], labels[:, 0]) for one in (seen, batch_of_two(seen)))
    assert all("follows private data" in str(said) for said in own)
    batch = batch_of_two(seen)
    assert batch.level is None and "no attack here reads all of it" in str(unread_level(batch))


def test_what_it_needs() -> None:
    seen, _, labels = hidden(LEVELS["each"], 2)
    for noise in (Noise("gaussian", 0.1), Noise("gaussian", None), Noise("unknown", None)):
        with pytest.raises(UsageError, match="how the noise's level follows the gradient"):
            run_attack(Levels(), replace(seen, noise=noise))
    with pytest.raises(UsageError, match="'levels' needs public data"):
        run_attack(Levels(), replace(seen, prior=None))
    broken = replace(seen, target=torch.full_like(seen.target, torch.nan), labels=labels)
    assert run_attack(Levels(), broken).images.isfinite().all()
