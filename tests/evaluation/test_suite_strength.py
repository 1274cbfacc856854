"""No suite is significantly weaker than any of its members at its defaults, on the same victims."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from harness.attacks import SUITES, reconstructing, run_attack
from harness.attacks.suites import LATEST
from harness.evaluation.measure import strict_rule
from harness.evaluation.observe import Stage
from harness.experiment import cell_settings

VICTIMS = 24
STAGE = Stage(Path("no data root"), VICTIMS)
# Of images; `identify` brings none back, `analytic` and `spear` need another network, `learned` shared weights.
ELSEWHERE = ("identify", "analytic", "spear", "learned")
RECONSTRUCTING = {name: own for name, own in SUITES[LATEST["auto"]].items() if name not in ELSEWHERE}
PLACES: dict[str, dict[str, Any]] = {
    "undefended": {"defense": "none"},
    "noise .01": {"defense": "noise", "defense_args": {"applies_to": "gradient", "amount": 0.01}},
    "noise .1": {"defense": "noise", "defense_args": {"applies_to": "gradient", "amount": 0.1}},
    "fed_cdp .003": {"defense": "fed_cdp", "defense_args": {"sigma": 0.003}},
    "fed_cdp .01": {"defense": "fed_cdp", "defense_args": {"sigma": 0.01}},
    "pruning": {"defense": "pruning", "tap": "T1.out"},
    "colours, undefended": {"dataset": "cifar10-sample", "defense": "none"},
    "colours, noise .01": {
        "dataset": "cifar10-sample", "defense": "noise", "defense_args": {"applies_to": "gradient", "amount": 0.01},
    },
}  # fmt: skip


def strict(place: str, attack: str, settings: dict[str, Any]) -> np.ndarray:
    """(V,), whose image came back."""
    usual: dict[str, Any] = {"dataset": "mnist-sample", "victims": VICTIMS, "prior": "auto"}
    cell = cell_settings(**usual | PLACES[place], attack=attack, attack_args=settings)
    scene, own = STAGE.set(cell), reconstructing(cell.build_attack())
    images = run_attack(own, scene.observation.known_to(own.tier)).images
    return strict_rule(scene.dataset)(scene.truth.images, images)[:, 0].numpy()


def weaker(tried: np.ndarray, usual: np.ndarray) -> float:
    """The p-value that what is tried loses no more victims than it gains (sign test of those on which both differ)."""
    lost, gained = int((usual & ~tried).sum()), int((tried & ~usual).sum())
    return 1.0 if lost + gained == 0 else float(binomtest(lost, lost + gained, alternative="greater").pvalue)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_suite_is_as_strong_as_its_members_at_their_defaults(place: str) -> None:
    own = {attack: strict(place, attack, dict(settings)) for attack, settings in RECONSTRUCTING.items()}
    usual = own | {attack: strict(place, attack, {}) for attack, settings in RECONSTRUCTING.items() if settings}
    strongest = max(own.values(), key=lambda found: int(found.sum()))
    print(place, {attack: (int(own[attack].sum()), int(usual[attack].sum())) for attack in own}, f"of {VICTIMS}")
    assert min(weaker(strongest, found) for found in usual.values()) > 0.05 / len(PLACES) / len(usual)


@pytest.mark.slow
def test_too_few_iterations_would_be_weaker() -> None:
    found = [strict("undefended", "inverting_gradients", {"max_iterations": cap}) for cap in (30, 300)]
    assert weaker(*found) < 0.01


@pytest.mark.parametrize(
    ("tried", "usual", "p_value"),
    [("1100", "1100", 1.0), ("0000", "1111", 1 / 16), ("1111", "0000", 1.0), ("0011", "1010", 0.75)],
)
def test_the_sign_test(tried: str, usual: str, p_value: float) -> None:
    assert weaker(*(np.array([mark == "1" for mark in marks]) for marks in (tried, usual))) == pytest.approx(p_value)
