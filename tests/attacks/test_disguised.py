"""An image that was changed before its gradient comes back as it was, to who knows the changes that there may be."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack
from harness.attacks.candidates import EXAMPLES_OF_FORMS, drawn_of_class, likely_disguises
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.reference import run_reference
from harness.attacks.residual import unread_level
from harness.base.building import build
from harness.defenses import DEFENSES
from harness.observation import Noise, Observation
from harness.testing import assert_attack_contract, digits, digits_prior, undefended

UNREAD = Noise("unknown", None, unread=True, bare=True)


def disguised(
    rows: int, policy: str, model: str = "logistic", dtype: torch.dtype = torch.float32
) -> tuple[Observation, Tensor]:
    """What is read of digits that were changed by turns in each of a policy's ways, and by which each was."""
    ways, (images, labels) = build(DEFENSES, "paper:ATS", {"policy": policy}).disguises, digits(rows)
    made = torch.arange(rows) % len(ways)
    changed = torch.stack([ways[way](image) for way, image in zip(made.tolist(), images.to(dtype), strict=True)])
    prior = digits_prior().to(torch.device("cpu"), dtype)
    return undefended(changed, labels, model=model, prior=prior, noise=UNREAD, disguises=ways), made


def rmse(images: Tensor, truth: Tensor) -> Tensor:
    return (images.clamp(0, 1) - truth).square().flatten(1).mean(1).sqrt()


def test_the_likelihood_of_a_change_is_that_of_public_images_after_it() -> None:
    seen, made = disguised(8, "3-1+0", dtype=torch.float64)
    seen = replace(seen, noise=Noise("gaussian", 0.02))
    labels = digits(8)[1][:, 0]
    found = likely_disguises(seen, labels)
    for row in (0, 4, 7):
        module = seen.model.plain(seen.weights[row])
        drawn = drawn_of_class(seen, int(labels[row]), EXAMPLES_OF_FORMS, "disguised").view(-1, 1, 1, 8, 8)
        level = math.hypot(0.02, 1e-4 * float(seen.target[row].square().mean().sqrt()))
        means = []
        for way in seen.disguises:
            wrong = []
            for image in drawn:
                loss = nn.functional.cross_entropy(module(way(image)), labels[row : row + 1])
                own = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
                wrong.append(-(own - seen.target[row]).square().sum() / (2 * level**2))
            means.append(torch.logsumexp(torch.stack(wrong), 0))
        assert found[row].tolist() == torch.stack(means).argsort(descending=True).tolist()
    assert int((found[:, 0] == made).sum()) >= 6


@pytest.mark.parametrize("model", ["logistic", pytest.param("lenet", marks=pytest.mark.slow)])
def test_changes_that_can_be_undone_are_undone(model: str) -> None:
    """Of an image and its negative the one is as good as the other, but to who knows what digits look like."""
    seen, made = disguised(8, "29+47-42", model)
    truth = digits(8)[0]
    knows, does_not = (
        rmse(run_attack(MaximumAPosteriori(), one).images, truth) for one in (seen, replace(seen, disguises=()))
    )
    assert int((knows <= 0.1).sum()) >= 7 and not (does_not <= 0.1).any(), (knows, does_not, made)


def test_images_that_were_changed_carry_no_noise_in_words() -> None:
    """No level follows anything here: the doubt is about what no attack undoes."""
    said = unread_level(disguised(2, "29")[0])
    assert said == "no attack here has a model of all that the defense does"


@pytest.mark.slow
def test_it_keeps_the_contract() -> None:
    assert_attack_contract(MaximumAPosteriori(max_iterations=2), disguised(4, "3-1+29", "mlp")[0])


def test_engines_agree() -> None:
    seen, attack = disguised(2, "0+29", "mlp", torch.float64)[0], MaximumAPosteriori(max_iterations=1)
    batched, alone = (run(attack, seen) for run in (run_attack, run_reference))
    torch.testing.assert_close(batched.images, alone.images, rtol=0, atol=1e-8)
    assert torch.equal(batched.restart, alone.restart) and torch.equal(batched.evaluations, alone.evaluations.double())
