"""Coordinates that were left out protect nobody, although noise covers their zeros, from who knows the rule."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.candidates import dummy_gradient
from harness.attacks.identify import Identify
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.reference import run_reference
from harness.attacks.residual import negative_log_likelihood, probability_sent
from harness.base.vectors import clip
from harness.observation import Choice, Chosen, Clipping, Law, Noise, Observation
from harness.testing import digits

Victims = Callable[..., Observation]
DEVIATION, SHARE = 0.001, 0.1


def sent_by(whole: Observation, largest: bool, deviation: float = DEVIATION, seed: int = 7) -> Observation:
    """Nine tenths of each gradient left out, the smallest or by chance, and noise on all that was sent."""
    random = torch.Generator().manual_seed(seed)
    count = int(SHARE * whole.target.shape[1])
    order = whole.target.abs() if largest else torch.rand(whole.target.shape, generator=random)
    sent = whole.target.where(order >= order.topk(count, dim=1).values[:, -1:], 0.0)
    noise = torch.randn(sent.shape, generator=random)
    return replace(
        whole, target=sent + deviation * noise, noise=Noise("gaussian", deviation), sparse=True,
        carrying=Chosen((count,), choice="largest" if largest else "chance"),
    )  # fmt: skip


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["the largest", "by chance"])
def seen(request: pytest.FixtureRequest, victims: Victims) -> Observation:
    return sent_by(victims(16), request.param)


def rmse(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) - digits(16)[0]).square().flatten(1).mean(1).sqrt()


def named(seen: Observation) -> Tensor:
    images, labels = digits(16)
    candidates = images[:, 0].expand(16, *images[:, 0].shape)
    return Identify().distances(seen, candidates, labels[:, 0]).argmin(1) == torch.arange(16)


def test_who_knows_the_rule_takes_the_largest_of_a_group_for_sent(victims: Victims) -> None:
    whole = victims(1)
    sizes, gradient = whole.model.layout.sizes, torch.randn(1, whole.target.shape[1])
    counts = tuple(size // 2 for size in sizes)
    made = probability_sent(replace(whole, carrying=Chosen(counts, "layer", "largest")), gradient)
    for part, own, count in zip(made.split(sizes, 1), gradient.split(sizes, 1), counts, strict=True):
        likely = part > 0.5
        assert likely.sum() == count and own.abs()[likely].min() >= own.abs()[~likely].max()
    by_chance = probability_sent(replace(whole, carrying=Chosen((sum(counts),))), gradient)
    torch.testing.assert_close(by_chance, torch.full_like(by_chance, sum(counts) / sum(sizes)))


DENSITIES: dict[Law, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda scaled: (-scaled.square() / 2).exp(),
    "laplace": lambda scaled: (-(2**0.5) * scaled.abs()).exp(),
}


@pytest.mark.parametrize("law", DENSITIES)
def test_both_cases_count_as_much_as_they_are_likely(law: Law, victims: Victims) -> None:
    whole = victims(2)
    target, candidate = torch.randn(2, *whole.target.shape, generator=torch.Generator().manual_seed(3))
    count, density = whole.target.shape[1] // 4, DENSITIES[law]
    seen = replace(
        whole, target=target, clipping=None, noise=Noise(law, 2.0), sparse=True, carrying=Chosen((count,))
    )  # fmt: skip
    share = count / whole.target.shape[1]
    mixed = share * density((target - candidate).double() / 2) + (1 - share) * density(target.double() / 2)
    torch.testing.assert_close(negative_log_likelihood(seen, candidate), -mixed.log().sum(1), rtol=1e-5, atol=0.0)


def test_noise_has_a_level_where_each_coordinate_has_its_own(victims: Victims) -> None:
    seen = sent_by(victims(4), largest=False)
    levels = torch.full_like(seen.target[0], DEVIATION)
    apart = replace(seen, noise=Noise("gaussian", levels))
    torch.testing.assert_close(
        negative_log_likelihood(apart, seen.target / 2),
        negative_log_likelihood(seen, seen.target / 2),
        rtol=1e-5,
        atol=0.0,
    )


def test_what_was_left_out_protects_nobody(seen: Observation) -> None:
    seen = replace(seen, labels=digits(16)[1])  # where chance leaves out bias gradients they tell no class
    known, unknown = (
        rmse(run_attack(MaximumAPosteriori(), each).images) for each in (seen, replace(seen, carrying=None))
    )
    assert known.median() < 0.7 * unknown.median(), (known, unknown)


def test_the_truth_is_the_most_probable(seen: Observation) -> None:
    known, unknown = named(seen), named(replace(seen, carrying=None))
    assert known.sum() >= 15 and known.sum() > unknown.sum()


def test_what_is_left_out_does_not_count_in_the_length_that_is_cut(victims: Victims) -> None:
    """Pruned first, then every tensor clipped by itself, then noise."""
    whole = victims(16)
    count, sizes, bound = int(SHARE * whole.target.shape[1]), whole.model.layout.sizes, 0.02
    least = whole.target.abs().topk(count, dim=1).values[:, -1:]
    sent = clip(whole.target.where(whole.target.abs() >= least, 0.0), bound, sizes)
    noise = 0.005 * torch.randn(sent.shape, generator=torch.Generator().manual_seed(7))
    seen = replace(
        whole, target=sent + noise, noise=Noise("gaussian", 0.005), sparse=True,
        clipping=Clipping(bound, "layer", "update"), carrying=Chosen((count,), choice="largest", clipped=True),
    )  # fmt: skip
    made = dummy_gradient(seen, *digits(16), True, differentiable=False)
    torch.testing.assert_close(made, sent)
    unaware = named(replace(seen, carrying=Chosen((count,)))).sum()
    assert named(seen).sum() > unaware, (named(seen).sum(), unaware)


def test_strong_noise_is_no_reason_to_leave_the_rule_out(victims: Victims) -> None:
    seen = sent_by(victims(16), largest=True, deviation=0.03)
    assert seen.carrying is not None
    assert named(seen).sum() > named(replace(seen, carrying=replace(seen.carrying, choice="unknown"))).sum()


def test_who_does_not_know_the_defense_does_not_know_how_many(seen: Observation) -> None:
    plain = seen.known_to("plain")
    assert plain.carrying is None and plain.fingerprint() != seen.fingerprint()
    assert replace(seen, carrying=None).fingerprint() != seen.fingerprint()


def test_both_engines_take_it_so(seen: Observation) -> None:
    few = seen.take(torch.arange(2)).to(torch.device("cpu"), torch.float64)
    attack = MaximumAPosteriori(max_iterations=4)
    batched, reference = run_attack(attack, few), run_reference(attack, few)
    torch.testing.assert_close(batched.images, reference.images, rtol=1e-6, atol=1e-8)


def test_every_look_may_have_others(victims: Victims) -> None:
    """Sums over how often each coordinate was sent are the mean over all that may have happened."""
    whole = victims(1)
    target, candidate = torch.randn(2, *whole.target.shape, generator=torch.Generator().manual_seed(3))
    count = whole.target.shape[1] // 4
    share = count / whole.target.shape[1]
    seen = replace(
        whole, target=target, noise=Noise("gaussian", 0.5), sparse=True, cut=0.4,
        carrying=Chosen((count,), choice="chance", looks=3),
    )  # fmt: skip
    mixed = sum(
        share**times * (1 - share) ** (3 - times) * math.comb(3, times)
        * (-((target.double() - times / 3 * candidate.double().clamp(-0.4, 0.4)) / 0.5).square() / 2).exp()
        for times in range(4)
    )  # fmt: skip
    assert isinstance(mixed, Tensor)
    torch.testing.assert_close(negative_log_likelihood(seen, candidate), -mixed.log().sum(1), rtol=1e-5, atol=0.0)
    same = negative_log_likelihood(replace(seen, carrying=Chosen((count,), choice="unknown", looks=3)), candidate)
    once = negative_log_likelihood(replace(seen, carrying=Chosen((count,), choice="chance")), candidate)
    torch.testing.assert_close(same, once)


def test_looks_tell_more_not_less(victims: Victims) -> None:
    whole = victims(16)
    looks = [sent_by(whole, largest=False, deviation=0.03, seed=seed) for seed in range(8)]
    mean = torch.stack([look.target for look in looks]).mean(0)
    carrying = looks[0].carrying
    assert carrying is not None
    every = replace(
        looks[0], target=mean, noise=Noise("gaussian", 0.03 / 8**0.5), carrying=replace(carrying, looks=8)
    )  # fmt: skip
    assert named(every).sum() > named(looks[0]).sum()


def test_of_those_that_are_large_enough_more_are_sent(victims: Victims) -> None:
    whole = replace(victims(1), target=torch.ones_like(victims(1).target))
    candidate = torch.linspace(-1, 1, whole.target.shape[1])[None]
    count = candidate.shape[1] // 10
    made = probability_sent(replace(whole, carrying=Chosen((count,), choice="chance", least=0.5)), candidate)
    large = candidate.abs() > 0.5
    assert made[large].unique().tolist() == [pytest.approx(count / int(large.sum()))]
    assert made[~large].max() < 0.01
    everything = Chosen((candidate.shape[1],), choice="chance", least=0.5)
    assert probability_sent(replace(whole, carrying=everything), candidate)[large].min() == pytest.approx(0.99)


def test_zeros_that_are_seen_are_not_guessed(victims: Victims) -> None:
    """Noise on what is sent alone: everything that is no zero carries something."""
    covered = sent_by(victims(2), largest=False)
    assert covered.carrying is not None
    sent = torch.rand(covered.target.shape, generator=torch.Generator().manual_seed(5)) < 0.05
    shown = replace(covered, target=covered.target.where(sent, 0.0))
    candidate = torch.randn_like(shown.target)
    assert (probability_sent(shown, candidate) == 1).all()
    torch.testing.assert_close(
        negative_log_likelihood(shown, candidate),
        negative_log_likelihood(replace(shown, carrying=None), candidate),
        rtol=1e-5,
        atol=0.0,
    )


def test_all_or_none_of_a_group_may_be_sent(victims: Victims) -> None:
    seen = sent_by(victims(2), largest=False)
    for count in (0, seen.target.shape[1]):
        for choice in get_args(Choice):
            candidate = seen.target.clone().requires_grad_(True)
            loss = negative_log_likelihood(replace(seen, carrying=Chosen((count,), choice=choice)), candidate)
            (slope,) = torch.autograd.grad(loss.sum(), candidate)
            assert loss.isfinite().all() and slope.isfinite().all()
