"""The slope of the likelihood: what it is by hand, and that it tells victims where the most probable image does not."""

from dataclasses import replace

import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.labels import bias_rule
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.residual import unread_level
from harness.attacks.slope import Slope
from harness.observation import Clipping, Noise, Observation
from harness.testing import digits, undefended
from harness.testing.attacks import CLASSES, digits_prior

ROWS, CLIP, DEVIATION = 48, 1.0, 0.12


def hidden(deviation: float = DEVIATION) -> tuple[Observation, Tensor, Tensor]:
    """Digits whose whole gradient was cut to a length of one, with noise, and public data; images, labels."""
    images, labels = digits(ROWS)
    clean = undefended(images, labels, model="logistic", prior=digits_prior())
    cut = clean.target / clean.target.norm(dim=1, keepdim=True).clamp_min(CLIP) * CLIP
    noise = torch.randn(cut.shape, generator=torch.Generator().manual_seed(5))
    seen = replace(
        clean, target=cut + deviation * noise, clipping=Clipping(CLIP, "whole", "example"),
        noise=Noise("gaussian", deviation),
    )  # fmt: skip
    return seen, images, labels


def relative_rank(made: Tensor, images: Tensor, labels: Tensor) -> float:
    """Mean place of the truth among other digits of its class: 0 nearest, 0.5 by chance."""
    apart = (made.flatten(1)[:, None].clamp(0, 1) - images.flatten(1)[None]).square().sum(2)
    ranks = []
    for row, label in enumerate(labels[:, 0]):
        others = apart[row, (labels[:, 0] == label) & (torch.arange(len(labels)) != row)]
        ranks.append(float((others < apart[row, row]).double().mean()))
    return sum(ranks) / len(ranks)


def test_it_is_what_the_derivative_says_by_hand() -> None:
    """Under weights of zero all classes are equally probable: the gradient (p - e_y) x is linear in the image."""
    images, labels = digits(5)
    silent = torch.zeros_like(undefended(images, labels, model="logistic").weights)
    seen = undefended(images, labels, model="logistic", weights=silent, prior=digits_prior())
    seen = replace(seen, labels=labels)
    noise = torch.randn(seen.target.shape, generator=torch.Generator().manual_seed(1))
    seen = replace(seen, target=seen.target + 0.3 * noise, noise=Noise("gaussian", 0.3))
    made = run_attack(Slope(), seen).images.flatten(1)
    for row, label in enumerate(labels[:, 0].tolist()):
        parts = seen.model.layout.split(seen.target[row : row + 1])
        weight = next(part for part in parts.values() if part.dim() == 3)[0]  # (K, D)
        errors = torch.full((CLASSES,), 1 / CLASSES)
        errors[label] -= 1
        slope = errors @ weight - errors.square().sum() * digits_prior().means[label]
        expected = (0.5 + 0.3 * slope / slope.square().mean().sqrt()).clamp(0, 1)
        torch.testing.assert_close(made[row], expected, rtol=0, atol=1e-4)


def test_it_tells_victims_where_the_most_probable_image_does_not() -> None:
    seen, images, labels = hidden()
    slope, likely = (run_attack(attack, seen) for attack in (Slope(), MaximumAPosteriori()))
    own, other = (relative_rank(result.images, images, labels) for result in (slope, likely))
    wrong = relative_rank(slope.images.roll(1, 0), images, labels)
    print(f"rank: slope {own:.2f}, map {other:.2f}, another victim's {wrong:.2f}")
    # 48 ranks by chance: mean .5, standard deviation .045.
    assert own < 0.3 and own < other - 0.1 and wrong > 0.35


def test_labels_come_from_the_whole_gradient() -> None:
    seen, _, labels = hidden()
    whole, bias = Slope().labels(seen), bias_rule(seen)
    assert whole is not None
    right, less = (float((found == labels).double().mean()) for found in (whole, bias))
    print(f"labels: by the whole gradient {right:.2f}, by the bias {less:.2f}")
    assert right > less + 0.15 and right > 0.6
    assert torch.equal(Slope().labels(replace(seen, labels=labels)) + 0, labels)  # type: ignore[operator]


def test_noise_that_hides_all_leaves_chance() -> None:
    seen, images, labels = hidden(100.0)
    result = run_attack(Slope(), seen)
    assert 0.35 < relative_rank(result.images, images, labels) < 0.65
    assert float((result.labels == labels).double().mean()) < 0.35


def test_a_level_that_follows_private_data_leaves_resilience_open() -> None:
    seen, *_ = hidden()
    result = run_attack(Slope(), seen)
    follows = replace(seen, noise=Noise("gaussian", None))
    assert Slope().doubt(seen, result.images, result.labels) is None
    for attack in (Slope(), MaximumAPosteriori()):
        said = attack.doubt(follows, result.images, result.labels)
        assert said == unread_level(follows) and said and "follows private data" in said
    assert unread_level(replace(seen, noise=Noise("unknown", None))) is None
