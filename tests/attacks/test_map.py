"""MAP finds the most probable image: by closed forms where there are any, and better than who knows less."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, run_attack
from harness.attacks.map import MaximumAPosteriori
from harness.base.building import build
from harness.base.errors import UsageError
from harness.datasets.prior import Prior
from harness.observation import Clipping, Noise, Observation
from harness.testing import digits, undefended
from harness.testing.attacks import CLASSES, digits_prior

Victims = Callable[..., Observation]
DEVIATION = 0.3


def noisy(observation: Observation, deviation: float, **facts: object) -> Observation:
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(7))
    target = observation.target + deviation * noise.to(observation.target)
    return replace(observation, target=target, noise=Noise("gaussian", deviation), **facts)


def covariance(prior: Prior, label: int) -> Tensor:
    """(D, D), from what its definition says."""
    group = prior.groups[label]
    directions, rest = prior.directions[group], prior.rest[group] ** 2
    inside = directions @ torch.diag(prior.scales[group] ** 2 - rest) @ directions.T
    return inside + rest * torch.eye(len(directions), dtype=directions.dtype)


def rmse(images: Tensor, truth: Tensor) -> Tensor:
    return (images.clamp(0, 1) - truth).square().flatten(1).mean(1).sqrt()


def test_it_is_the_posterior_mean_of_a_linear_gaussian_problem() -> None:
    """Under weights of zero all classes are equally probable, whatever the image: its gradient is linear in it."""
    rows, (images, labels) = 3, digits(3)
    prior = digits_prior().to(torch.device("cpu"), torch.float64)
    empty = undefended(images.double(), labels, model="logistic")
    silent = torch.zeros_like(empty.weights)
    seen = noisy(undefended(images.double(), labels, model="logistic", weights=silent, prior=prior), DEVIATION)
    found = run_attack(MaximumAPosteriori(), seen).images.flatten(1)
    assert torch.equal(run_attack(MaximumAPosteriori(), seen).labels, labels)
    for row in range(rows):
        label = int(labels[row, 0])
        parts = seen.model.layout.split(seen.target[row : row + 1])
        weight = next(part for part in parts.values() if part.dim() == 3)[0]  # (K, D)
        errors = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
        errors[label] -= 1
        spread, mean = covariance(prior, label), prior.means[label]
        precision = torch.linalg.inv(spread)
        informed = precision + errors.square().sum() / DEVIATION**2 * torch.eye(64, dtype=torch.float64)
        expected = torch.linalg.solve(informed, precision @ mean + errors @ weight / DEVIATION**2)
        assert (found[row] - expected).abs().max() < 1e-4
        assert (expected - mean).abs().max() > 1e-2  # the gradient says something


def test_it_withstands_noise_that_stops_who_does_not_know_it(victims: Victims) -> None:
    seen, truth = noisy(victims(16), 0.03), digits(16)[0]
    informed = rmse(run_attack(MaximumAPosteriori(), seen).images, truth)
    misled = rmse(run_attack(MaximumAPosteriori(), replace(seen, noise=Noise("gaussian", 0.003))).images, truth)
    unsure = rmse(run_attack(MaximumAPosteriori(), replace(seen, noise=Noise("gaussian", None))).images, truth)
    blind = rmse(digits_prior().means[digits(16)[1].flatten()].reshape(16, 1, 1, 8, 8), truth)
    assert informed.mean() < misled.mean() and informed.mean() < 0.9 * blind.mean()
    assert unsure.mean() < 1.1 * informed.mean()  # the level is read off what was observed


def test_a_foreign_prior_serves_it_worse(victims: Victims) -> None:
    """It degrades towards what the gradient says, and does not invent what the prior says."""
    seen, truth, own = noisy(victims(16), 0.05), digits(16)[0], digits_prior()
    foreign = replace(own, means=(1 - own.means).flip(1))
    by_own, by_foreign = (
        rmse(run_attack(MaximumAPosteriori(), replace(seen, prior=prior)).images, truth) for prior in (own, foreign)
    )
    lies = rmse(foreign.means[digits(16)[1].flatten()].reshape(16, 1, 1, 8, 8), truth)
    assert by_own.mean() < by_foreign.mean() < lies.mean()


def test_a_known_clip_is_no_protection(victims: Victims) -> None:
    images, free, bound = digits(4)[0], victims(4), 0.05
    parts = free.target.split(free.model.layout.sizes, 1)
    clipped = [part * (bound / part.norm(dim=1, keepdim=True)).clamp(max=1) for part in parts]
    seen = replace(free, target=torch.cat(clipped, 1), clipping=Clipping(bound, "layer", "example"))
    assert (rmse(run_attack(MaximumAPosteriori(), seen).images, images) <= 0.1).all()


def test_classes_that_noise_leaves_open_are_tried(victims: Victims) -> None:
    """The smallest bias gradient is often another class's under such noise; the objective finds more true ones."""
    seen, (images, labels) = noisy(victims(40), 0.4), digits(40)
    single, usual = (run_attack(MaximumAPosteriori(label_starts=count, max_iterations=5), seen) for count in (1, 3))
    right = [int((found.labels == labels).sum()) for found in (single, usual)]
    assert right[0] + 4 <= right[1] <= 40
    assert rmse(usual.images, images).mean() < rmse(single.images, images).mean()
    assert (usual.loss <= single.loss).all() and (usual.evaluations > single.evaluations).all()


@pytest.mark.parametrize(
    "facts", [{"deviation": 1e-4}, {"deviation": 0.4, "known": True}, {"deviation": 0.4, "rule": "row_sum"}]
)
def test_a_class_that_is_settled_is_tried_alone(victims: Victims, facts: dict[str, Any]) -> None:
    seen = noisy(victims(4), facts["deviation"])
    seen = replace(seen, labels=digits(4)[1]) if "known" in facts else seen
    usual, single = (
        run_attack(MaximumAPosteriori(label_starts=count, max_iterations=3, label_rule=facts.get("rule", "auto")), seen)
        for count in (3, 1)
    )
    assert all(torch.equal(getattr(usual, name), getattr(single, name)) for name in ("images", "evaluations", "labels"))


def test_starts_of_a_batch_differ(victims: Victims) -> None:
    """Equal starts of two images of a class would stay equal."""
    seen = victims(2, 2)
    attack = MaximumAPosteriori()
    start = attack.start(seen, [(*key, 0) for key in seen.keys])
    assert not torch.equal(start[:, :64], start[:, 64:])
    single = MaximumAPosteriori(restarts=2).start(victims(2), [(0, 0, 0), (0, 0, 1)])
    assert not single[0].any() and single[1].any()


def test_noise_that_was_not_applied_is_named(victims: Victims) -> None:
    seen, attack = noisy(victims(8), 0.1), MaximumAPosteriori(max_iterations=4)
    found = run_attack(attack, seen)
    assert attack.doubt(seen, found.images, found.labels) is None
    for factor, words in ((1.2, "0.8"), (50.0, "0.02")):
        misled = replace(seen, noise=Noise("gaussian", 0.1 * factor))
        found = run_attack(attack, misled)
        assert words in (attack.doubt(misled, found.images, found.labels) or "")


def test_a_level_to_be_estimated_does_not_end_it_early(victims: Victims) -> None:
    """Its log-likelihood has no zero that would mean success: small residuals make the loss negative at once."""
    seen = replace(noisy(victims(4), 0.003), noise=Noise("gaussian", None))
    found = run_attack(MaximumAPosteriori(), seen)
    assert (found.loss < 0).all() and (found.iterations > 1).all()
    assert (found.loss <= run_attack(MaximumAPosteriori(max_iterations=1), seen).loss).all()


def test_settings_that_it_has_no_use_for_are_refused() -> None:
    for name, value in (("objective", "cosine"), ("scale", "raw"), ("init", "gauss"), ("box", True), ("loss_stop", 1)):
        with pytest.raises(UsageError):
            build(ATTACKS, "map", {name: value})


@pytest.mark.parametrize(
    "columns", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(8, marks=pytest.mark.slow)]
)
def test_pixels_that_are_read_without_noise_narrow_no_way(columns: int) -> None:
    """Of the first ones, most are black in every image, and their gradients are read as 0 without any noise."""
    images, labels = digits(16)
    clean = undefended(images, labels, model="mlp2", prior=digits_prior())
    levels = torch.full((clean.model.layout.total,), 1e-3)
    first = levels[: clean.model.layout.sizes[0]].view(-1, images[0].numel())
    first[:, :columns] = 0.0
    seen = replace(
        clean,
        target=clean.target + levels * torch.randn(clean.target.shape, generator=torch.Generator().manual_seed(2)),
        labels=labels,
    )
    seen = replace(seen, noise=Noise("gaussian", levels))
    errors = rmse(run_attack(MaximumAPosteriori(), seen).images, images)
    blind = rmse(digits_prior().means[labels[:, 0]].view_as(images), images)
    print(f"{columns} columns: {float(errors.median()):.3f}, without a gradient {float(blind.median()):.3f}")
    assert float(errors.median()) < float(blind.median()) / 1.5
