"""Pruned gradients: the coordinates that were left out are left out of the comparison."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.attack import Attack
from harness.attacks.cpl import CPL
from harness.attacks.dlg import IDLG
from harness.observation import Clipping, Observation

Victims = Callable[..., Observation]
VICTIMS = 4


def pruned(observation: Observation, share: float) -> Observation:
    """The same observation with the smallest ``share`` of each row's coordinates left out, and known to be so."""
    kept = observation.target.abs().topk(round((1 - share) * observation.target.shape[1]), 1).indices
    target = torch.zeros_like(observation.target).scatter(1, kept, observation.target.gather(1, kept))
    return replace(observation, target=target, sparse=True)


def errors(attack: Attack, observation: Observation, digits: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    made = run_attack(attack, observation).images.clamp(0, 1)
    return (made - digits(VICTIMS, 1)[0]).square().flatten(1).mean(1).sqrt()


@pytest.mark.parametrize("facts", [
    pytest.param({}, id="raw"),
    pytest.param({"clipping": Clipping(1.0, "layer", "example")}, id="scale-free", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_masked_attack_recovers_more(
    facts: dict[str, Clipping], victims: Victims, digits: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    observation = pruned(victims(VICTIMS, model="lenet", **facts), 0.85)
    masked, plain = (errors(CPL(max_iterations=10, masked=how), observation, digits) for how in ("auto", "no"))
    assert masked.median() < 0.5 * plain.median()
    assert (masked <= 0.1).float().mean() >= 0.5 > (plain <= 0.1).float().mean()


@pytest.mark.parametrize(("sparse", "masked", "expected"), [
    (True, "auto", True), (False, "auto", False), (True, "no", False), (False, "yes", True),
])  # fmt: skip
def test_it_masks_what_the_defense_is_known_to_leave_out(
    sparse: bool, masked: str, expected: bool, victims: Victims
) -> None:
    observation = replace(victims(2), sparse=sparse)
    assert CPL(masked=masked).masks(observation) is expected
    # A coordinate that was read as zero counts in the distance unless it is masked.
    observation.target[:, 5] = 0.0
    distance = CPL(masked=masked).distance(observation, observation.target + torch.eye(len(observation.target[0]))[5])
    assert torch.equal(distance == 0, torch.full((2,), expected))


def test_nothing_changes_where_nothing_is_zero(victims: Victims) -> None:
    observation = victims(3, model="lenet")
    # Black pixels leave exact zeros of their own; a little noise covers them.
    observation.target.add_(1e-3 * torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0)))
    assert (observation.target != 0).all()
    plain, masked = (run_attack(IDLG(max_iterations=2, masked=how), observation) for how in ("no", "yes"))
    assert torch.equal(plain.images, masked.images) and torch.equal(plain.loss, masked.loss)
