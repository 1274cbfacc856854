"""Of a coordinate that was cut little but the sign is known, and all candidates beyond the cut are as probable."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.identify import Identify
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.residual import explained
from harness.observation import Noise, Observation
from harness.testing import digits

Victims = Callable[..., Observation]


def cut(whole: Observation, limit: float, deviation: float = 0.0) -> Observation:
    noise = deviation * torch.randn(whole.target.shape, generator=torch.Generator().manual_seed(7))
    known = Noise("gaussian", deviation) if deviation else None
    return replace(whole, target=whole.target.clamp(-limit, limit) + noise, cut=limit, noise=known)


def rmse(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) - digits(16)[0]).square().flatten(1).mean(1).sqrt()


def test_only_beyond_the_cut_and_on_its_side_is_all_explained(victims: Victims) -> None:
    target = torch.tensor([[1.0, 1.0, 1.0, -1.0, 0.5, 0.0]])
    seen = replace(victims(1), target=target, cut=1.0, clipping=None)
    candidate = torch.tensor([[3.0, 0.7, -3.0, -2.0, 3.0, 3.0]], requires_grad=True)
    made = explained(seen, candidate, lead=True)
    assert made.tolist() == [[1.0, pytest.approx(0.7), -3.0, -1.0, 3.0, 3.0]]
    (slope,) = torch.autograd.grad(made.sum(), candidate)
    assert slope.tolist() == [[0.0, 1.0, 1.0, 0.0, 1.0, 1.0]]
    near = replace(seen, target=target - 0.03, noise=Noise("gaussian", 0.01))
    assert explained(near, candidate, lead=True)[0, :2].tolist() == [pytest.approx(1.0), pytest.approx(0.7)]


def test_noise_as_large_as_the_cut_leaves_nothing_to_what_lies_beyond(victims: Victims) -> None:
    target = torch.tensor([[0.5, -0.4, 9.0, 0.5, -9.0]])
    seen = replace(victims(1), target=target, cut=1.0, clipping=None, noise=Noise("gaussian", 0.5))
    candidate = torch.tensor([[3.0, 3.0, 3.0, 0.7, 3.0]])
    made = explained(seen, candidate, lead=True)
    assert made.tolist() == [[1.0, 1.0, 1.0, pytest.approx(0.7), 3.0]]
    assert explained(seen, candidate).tolist() == [[1.0, 1.0, 1.0, pytest.approx(0.7), 1.0]]
    unknown = replace(seen, noise=Noise("gaussian", None))
    assert explained(unknown, torch.tensor([[3.0, 3.0, -3.0, 0.7, -3.0]]), lead=True).tolist() == [
        [1.0, 3.0, -3.0, pytest.approx(0.7), -1.0]
    ]


@pytest.mark.parametrize("deviation", [0.001, *(pytest.param(other, marks=pytest.mark.slow) for other in (0.0, 0.01))])
def test_a_cut_protects_nobody_who_knows_it(deviation: float, victims: Victims) -> None:
    seen = cut(victims(16), 0.02, deviation)
    known, unknown = (
        rmse(run_attack(MaximumAPosteriori(max_iterations=20), each).images) for each in (seen, replace(seen, cut=None))
    )
    assert known.median() < 0.6 * unknown.median(), (known, unknown)


def test_the_truth_is_the_most_probable(victims: Victims) -> None:
    seen, (images, labels) = cut(victims(16), 0.02, 0.003), digits(16)
    candidates = images[:, 0].expand(16, *images[:, 0].shape)
    known, unknown = (
        Identify().distances(each, candidates, labels[:, 0]).argmin(1) == torch.arange(16)
        for each in (seen, replace(seen, cut=None))
    )
    assert known.all() and not unknown.all()
    assert Identify().doubt(seen, images[:, 0], labels[:, 0]) is None


def test_who_does_not_know_the_defense_does_not_know_the_cut(victims: Victims) -> None:
    seen = cut(victims(2), 0.02)
    assert seen.known_to("plain").cut is None and seen.fingerprint() != replace(seen, cut=None).fingerprint()
