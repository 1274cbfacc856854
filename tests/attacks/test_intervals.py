"""Intervals: bounds of rounded, signed and omitted numbers bring back what their values alone do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, run_attack
from harness.attacks.among import _of_chance
from harness.attacks.intervals import as_written, bounds_of
from harness.attacks.residual import improbability
from harness.base.building import build
from harness.base.coding import ByChance, Coding, Largest
from harness.base.errors import UsageError
from harness.evaluation.rounds_seen import ModelOverRounds
from harness.observation import Clipping, Noise, Observation

VICTIMS, UNIT = 8, -0.05
Victims = Callable[..., Observation]
#: A form, the plain attacker's setting that is fair to it, and the least lead over it of 8 victims.
FORMS: list[tuple[Coding, int]] = [
    (Coding("int8", UNIT, bits=3), 4), (Coding("sign", UNIT), 4), (Largest(), 4), (ByChance(unit=UNIT, steps=3), 4),
]  # fmt: skip


def by_chance(numbers: Tensor, step: Tensor, steps: int, seed: int = 3) -> Tensor:
    drawn = torch.rand(numbers.shape, generator=torch.Generator().manual_seed(seed))
    return numbers.sign() * (numbers.abs() / step + drawn).floor().clamp_max(steps) * step


def written(seen: Observation, form: Coding) -> Observation:
    """The same, as it is read behind a form."""
    if isinstance(form, Largest):
        least = seen.target.abs().quantile(0.99, dim=1, keepdim=True)
        return replace(seen, target=seen.target.where(seen.target.abs() > least, 0.0), coding=form, sparse=True)
    if isinstance(form, ByChance):
        step = form.largest(seen.target, seen.model.layout.sizes) / form.steps
        return replace(seen, target=by_chance(seen.target, step, form.steps), coding=form)
    return replace(seen, target=form.of(seen.target, seen.model.layout.sizes), coding=form)


def errors(name: str, seen: Observation, images: Tensor) -> Tensor:
    attack = build(ATTACKS, name, {})
    made = run_attack(attack, seen.known_to(attack.tier)).images.clamp(0, 1)
    return (made - images).square().flatten(1).mean(1).sqrt()


@pytest.mark.parametrize(("form", "lead"), FORMS, ids=["3 bits", "signs", "largest", "chance"])
def test_it_brings_back_what_others_do_not(
    form: Coding, lead: int, victims: Victims, digits: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    seen, images = written(victims(VICTIMS, model="lenet"), form), digits(VICTIMS, 1)[0]
    found = {name: int((errors(name, seen, images) <= 0.1).sum()) for name in ("cpl", "intervals")}
    assert found["intervals"] >= found["cpl"] + lead, found


def test_candidates_are_compared_by_the_chance_of_what_was_sent(victims: Victims) -> None:
    """Within the bounds of all numbers nothing else tells them apart."""
    true, form = victims(3, model="mlp").target, ByChance(unit=UNIT, steps=3)
    seen = written(victims(3, model="mlp"), form)
    step = (form.largest(seen.target, seen.model.layout.sizes) / form.steps).double()
    near, far = (seen.target + share * (true - seen.target) for share in (0.5, 0.9))
    of_each = [-(1 - (one - seen.target).double().abs() / step).log().sum(1) for one in (near, far)]
    ours = improbability(seen, near) - improbability(seen, far)
    torch.testing.assert_close(ours, of_each[0] - of_each[1], rtol=1e-4, atol=1e-3)
    assert bool((ours < -100).all())


@pytest.mark.parametrize("typical", [0.05, 0.3, 0.5, 2.5])
def test_chance_adds_the_variance_that_draws_have(typical: float, victims: Victims) -> None:
    """Below a step that of one number, beyond it that of all places between two multiples alike."""
    one, form = victims(1, model="mlp"), ByChance(steps=4)
    seen = replace(one, target=torch.full_like(one.target, 4.0), coding=form)  # so that a step is 1
    numbers = torch.full((200_000,), typical) if typical < 1 else 2 + torch.rand(200_000)
    variance = float((by_chance(numbers, torch.ones(()), 4, 5) - numbers).square().mean())
    told = _of_chance(seen, form, torch.full_like(seen.target[0], typical).double())
    torch.testing.assert_close(told, torch.full_like(told, variance), rtol=0.03, atol=0)


@pytest.mark.slow
def test_who_takes_signs_for_numbers_of_this_size_loses(
    victims: Victims, digits: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    """The bounds are what helps, and not the prior: with signs turned over it finds less than with none at all."""
    seen, images = written(victims(VICTIMS, model="lenet"), Coding("sign", UNIT)), digits(VICTIMS, 1)[0]
    turned = errors("intervals", replace(seen, target=-seen.target), images)
    assert float(errors("intervals", seen, images).median()) < 0.7 * float(turned.median())


def test_undefended_numbers_are_exact_and_omitted_ones_anything(victims: Victims) -> None:
    seen = victims(2, model="mlp")
    low, high = bounds_of(seen)
    assert torch.equal(low, seen.target) and torch.equal(high, seen.target)
    left = replace(seen, target=seen.target.where(seen.target > 0, 0.0), sparse=True)
    low, high = bounds_of(left)
    assert torch.equal(low.isinf(), left.target == 0) and torch.equal(high.isinf(), left.target == 0)


def test_error_feedback_adds_what_was_lost(victims: Victims) -> None:
    """Sent in rounds: the whole of what was to be sent is what a candidate has to have written."""
    seen, form = victims(3, model="mlp"), Largest(feedback=True)
    model = ModelOverRounds(seen.model, 3)
    gradients = torch.randn(3, 3, seen.model.layout.total, generator=torch.Generator().manual_seed(0))
    lost, sent, whole = torch.zeros_like(gradients[:, 0]), [], []
    for number in range(3):
        whole.append(gradients[:, number] + lost)
        sent.append(whole[-1].where(whole[-1].abs() > 1.5, 0.0))
        lost = whole[-1] - sent[-1]
    read = replace(
        seen, model=model, weights=seen.weights.repeat(1, 3), target=torch.cat(sent, 1), coding=form, sparse=True
    )
    torch.testing.assert_close(as_written(read, gradients.flatten(1)), torch.cat(whole, 1), rtol=0, atol=1e-5)
    low, high = bounds_of(read)
    made = as_written(read, gradients.flatten(1))
    assert bool((low <= made + 1e-5).all()) and bool((made <= high + 1e-5).all())
    # Without it, bounds do not hold the truth's own gradients.
    assert bool((gradients.flatten(1) > high + 1e-3).any())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"noise": Noise("gaussian", 0.1)}, "noise hides the bounds"),
    ({"clipping": Clipping(None, "whole", "update")}, "bounds that nobody knows"),
    ({"coding": Coding("length")}, "bounds no numbers"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=["noise", "clips", "lengths"])
def test_what_bounds_nothing_is_refused_in_one_line(changes: dict[str, Any], said: str, victims: Victims) -> None:
    seen = replace(victims(2, model="mlp"), **changes)
    with pytest.raises(UsageError, match=f"{said}.*use --attack map"):
        run_attack(build(ATTACKS, "intervals", {}), seen)
