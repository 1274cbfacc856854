"""Coordinates that were left out are told from others although noise covers their zeros."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.covered_zeros import uncovered
from harness.attacks.identify import Identify
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.reference import run_reference
from harness.observation import Noise, Observation
from harness.testing import digits

Victims = Callable[..., Observation]
DEVIATION, SHARE = 0.001, 0.1


@pytest.fixture
def seen(victims: Victims) -> Observation:
    """Sixteen gradients, nine tenths of each left out, and noise on all that was sent."""
    whole = victims(16)
    count = int(SHARE * whole.target.shape[1])
    least = whole.target.abs().topk(count, dim=1).values[:, -1:]
    sent = whole.target.where(whole.target.abs() >= least, 0.0)
    noise = torch.randn(sent.shape, generator=torch.Generator().manual_seed(7))
    return replace(
        whole, target=sent + DEVIATION * noise, noise=Noise("gaussian", DEVIATION), sparse=True, carrying=count
    )


def rmse(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) - digits(16)[0]).square().flatten(1).mean(1).sqrt()


def test_the_largest_stay_what_they_are(seen: Observation) -> None:
    made = uncovered(seen).target
    assert seen.carrying is not None and ((made != 0).sum(1) == seen.carrying).all()
    assert torch.equal(made[made != 0], seen.target[made != 0])
    assert made.abs().where(made != 0, torch.inf).amin(1).ge(seen.target.where(made == 0, 0.0).abs().amax(1)).all()
    assert uncovered(replace(seen, carrying=None)).target is seen.target


def test_what_was_left_out_protects_nobody(seen: Observation) -> None:
    known, unknown = (
        rmse(run_attack(MaximumAPosteriori(), each).images) for each in (seen, replace(seen, carrying=None))
    )
    assert (known <= 0.1).sum() >= 10 and (unknown <= 0.1).sum() <= 4, (known, unknown)


def test_the_truth_is_the_most_probable(seen: Observation) -> None:
    images, labels = digits(16)
    candidates = images[:, 0].expand(16, *images[:, 0].shape)
    known, unknown = (
        Identify().distances(each, candidates, labels[:, 0]).argmin(1) == torch.arange(16)
        for each in (seen, replace(seen, carrying=None))
    )
    assert known.sum() >= 15 and known.sum() > unknown.sum()


def test_who_does_not_know_the_defense_does_not_know_how_many(seen: Observation) -> None:
    plain = seen.known_to("plain")
    assert plain.carrying is None and plain.fingerprint() != seen.fingerprint()
    assert replace(seen, carrying=None).fingerprint() != seen.fingerprint()


def test_both_engines_take_it_so(seen: Observation) -> None:
    few = seen.take(torch.arange(2)).to(torch.device("cpu"), torch.float64)
    attack = MaximumAPosteriori(max_iterations=4)
    batched, reference = run_attack(attack, few), run_reference(attack, few)
    torch.testing.assert_close(batched.images, reference.images, rtol=1e-6, atol=1e-8)


def test_an_honest_defense_is_not_accused(seen: Observation) -> None:
    images, labels = digits(16)
    assert Identify().doubt(seen, images[:, 0], labels[:, 0]) is None
    assert MaximumAPosteriori().doubt(seen, images, labels) is None
    assert MaximumAPosteriori().doubt(replace(seen, carrying=None, sparse=False), images, labels) is None
