"""A defense that adds other noise than it declares is named, before its attackers fail for that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.defenses import DEFENSES
from harness.errors import UsageError
from harness.evaluation.declared_noise import WrongDeclaration, require_declared
from harness.federation.taps import Hook
from harness.noise_level import NoiseLevel
from harness.observation import Noise, Observation
from harness.testing import digits, undefended
from harness.vectors.layout import spread

NOISE = DEFENSES["noise"]
QUIET = undefended(*digits(4))
LEVELS = torch.cat([torch.zeros(100), torch.full((QUIET.target.shape[1] - 100,), 0.02)])


FOLLOWS = NoiseLevel(0.5, "largest")
EACH = NoiseLevel(0.5, "each")


def noisy(deviation: float | torch.Tensor, declared: Noise | None, **facts: Any) -> Observation:
    added = deviation * torch.randn(QUIET.target.shape, generator=torch.Generator().manual_seed(0))
    return replace(QUIET, target=QUIET.target + added, noise=declared, **facts)


def following(times: float) -> Observation:
    """Noise of a level that follows the gradient, by so many times what is declared."""
    level = FOLLOWS.deviations(QUIET.target, QUIET.model.layout.sizes)[:, :1].float()
    return noisy(times * level, Noise("gaussian", None, level=FOLLOWS))


def of_level(level: torch.Tensor, declared: NoiseLevel) -> Observation:
    """Noise of deviations (R, P), scaled so that they are right in the mean over all rows and tensors."""
    sizes = QUIET.model.layout.sizes
    told = spread(declared.deviations(QUIET.target, sizes), sizes).float()
    return noisy(level / (level / told).square().mean().sqrt(), Noise("gaussian", None, level=declared))


def swapped(level: torch.Tensor) -> torch.Tensor:
    """Every row with the level of another one."""
    return level.roll(1, 0)


SIZES = QUIET.model.layout.sizes
OF_EACH, OF_LARGEST = (spread(one.deviations(QUIET.target, SIZES), SIZES).float() for one in (EACH, FOLLOWS))


def uneven(share: float) -> Observation:
    """Noise of 24 rows whose deviations differ by that share, and are declared as one."""
    seen = undefended(*digits(24))
    random = torch.Generator().manual_seed(1)
    level = 0.02 * (1 + share * torch.linspace(-(3**0.5), 3**0.5, 24)[torch.randperm(24, generator=random)])
    added = level[:, None] * torch.randn(seen.target.shape, generator=random)
    return replace(seen, target=seen.target + added, noise=Noise("gaussian", 0.02))


HONEST = {
    "none": noisy(0.0, None),
    "what it says": noisy(0.02, Noise("gaussian", 0.02)),
    "off by less than a tenth": noisy(0.021, Noise("gaussian", 0.02)),
    "a level of each coordinate": noisy(LEVELS, Noise("gaussian", LEVELS)),
    "a level that nobody publishes": noisy(0.02, Noise("unknown", None)),
    "a level that follows the gradient": following(1.0),
    "after steps that have moved the gradient": noisy(0.02, Noise("gaussian", 0.005), local_steps=2),
    "a level of each tensor": of_level(OF_EACH, EACH),
    "of the size of rounding": noisy(0.0, Noise("gaussian", 1e-9)),
}
WRONG = {
    "declares nothing": (noisy(0.02, None), "adds noise of which it declares nothing there"),
    "too little": (noisy(0.01, Noise("gaussian", 0.02)), "adds 0.5 times the noise that it declares"),
    "too much": (noisy(0.02, Noise("laplace", 0.01)), "adds 2 times the noise that it declares"),
    "no level": (noisy(0.02, Noise("gaussian", 0.0)), "adds noise where it declares a deviation of zero"),
    "beside its level": (noisy(0.02, Noise("gaussian", LEVELS)), "adds noise where it declares a deviation of zero"),
    "a level that follows otherwise": (following(2.0), "adds 2 times the noise that it declares"),
    "a level of the wrong kind": (of_level(OF_EACH, FOLLOWS), r"adds [\d.]+ times the noise .* in tensor '.*'"),
    "another row's level": (of_level(swapped(OF_LARGEST), FOLLOWS), r"adds [\d.]+ times the noise .* in row \d of 4"),
    "none at all": (noisy(0.0, Noise("gaussian", 0.02)), "adds none of the noise that it declares there"),
}


@pytest.mark.parametrize("seen", HONEST.values(), ids=HONEST)
def test_honest(seen: Observation) -> None:
    require_declared("mine", "T2.step", QUIET, seen)


@pytest.mark.parametrize(("seen", "told"), WRONG.values(), ids=WRONG)
def test_wrong(seen: Observation, told: str) -> None:
    with pytest.raises(WrongDeclaration, match=f"'mine' {told} .T2.step.; let noise_of"):
        require_declared("mine", "T2.step", QUIET, seen)


def test_a_level_that_differs_from_row_to_row() -> None:
    """By 5%: no row is off by more than a tenth, and all together tell."""
    quiet = undefended(*digits(24))
    require_declared("mine", "T2.step", quiet, uneven(0.0))
    with pytest.raises(WrongDeclaration, match=r"varies by [3-7]% among rows and tensors otherwise than it declares"):
        require_declared("mine", "T2.step", quiet, uneven(0.05))


def test_what_is_no_number_is_told_as_such() -> None:
    with pytest.raises(UsageError, match="'mine' makes numbers that are not finite"):
        require_declared("mine", "T2.step", QUIET, noisy(torch.nan, None))


def test_noise_that_is_declared_at_another_tap_ends_the_run(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(self: Any, hook: Hook, context: Any) -> Noise | None:
        return Noise("gaussian", 0.1) if hook == Hook.CLIENT_MESSAGE else None

    monkeypatch.setattr(NOISE, "noise_of", elsewhere)
    cell = small.cell(defense="noise", defense_args={"applies_to": "gradient", "amount": 0.1})
    with pytest.raises(WrongDeclaration, match="declares nothing there"):
        small.play([cell], tmp_path)
