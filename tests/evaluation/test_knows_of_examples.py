"""An attacker who knows more of the examples than kappa assumes: an honest run stays valid where the attack says so."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness.attacks import ATTACKS, Reconstruction
from harness.attacks.cpl import CPL
from harness.attacks.engine import run_attack
from harness.datasets import load_dataset
from harness.evaluation import attacking
from harness.observation import Observation
from harness.scoring.verdict import fault_of

VICTIMS = 8


@pytest.fixture
def told(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks named ``told`` and ``silent`` know most of each victim's image, and one of them says so."""
    for store in ("_entries", "_aliases"):
        monkeypatch.setattr(ATTACKS, store, dict(getattr(ATTACKS, store)))

    class Told(CPL):
        knows_of_examples: ClassVar[str | None] = "most of each image"

    class Silent(CPL):
        pass

    ATTACKS.register("told")(Told)
    ATTACKS.register("silent")(Silent)
    small.play([small.cell(defense="fed_cdp", victims=VICTIMS)], tmp_path / "first")
    lines = [json.loads(line) for line in small.victims(tmp_path / "first")]
    images = load_dataset("digits", Path()).images
    known = images[[one["dataset_index"] for one in lines if one["role"] == "cell"]].clone()
    # All but the lowest row, of which they guess the mean.
    known[:, :, 7:] = images.mean(0)[:, 7:]

    def informed(attack: Any, observation: Observation, *rest: Any) -> Reconstruction:
        made = run_attack(attack, observation, *rest)
        if type(attack).__name__ in ("Told", "Silent") and len(made.images) == VICTIMS:
            made.images.copy_(known[:, None].to(made.images))
        return made

    monkeypatch.setattr(attacking, "run_attack", informed)


@pytest.mark.usefixtures("told")
def test_who_says_what_it_knows_makes_no_honest_run_invalid(small: Any, tmp_path: Path) -> None:
    settings = small.cell(defense="fed_cdp", victims=VICTIMS, attack="told")
    document = small.play([settings], tmp_path / "told")
    (made,) = [cell for cell in document.cells if cell.role == "cell"]
    assert document.valid
    first, strict = made.bound.events
    assert first.measured.rate > 0.7
    for event in (first, strict):
        assert (event.kappa, event.ceiling, event.p_value) == (None, None, None)
        assert "knows most of each image beforehand" in event.reason
    assert made.bound.mu == pytest.approx(6**0.5 / 6) and any("most of each image" in flag for flag in made.flags)
    assert {check.name for check in made.controls} >= {"positive", "swap"}
    assert "noise_x100" not in {check.name for check in made.controls}


@pytest.mark.usefixtures("told")
def test_the_same_attack_that_does_not_say_so_looks_like_a_fault(small: Any, tmp_path: Path) -> None:
    made = small.alone(small.cell(defense="fed_cdp", victims=VICTIMS, attack="silent"), tmp_path / "silent").cell
    first = made.bound.events[0]
    assert first.measured.rate > 0.7 > 0.1 > first.ceiling
    assert "did what no attacker can" in (fault_of([made]) or "")
