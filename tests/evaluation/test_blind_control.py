"""Beside an informed attack stands a guess that saw no gradient: what it reaches is chance, and it must not leak."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from harness.attacks.cpl import CPL
from harness.attacks.dlg import IDLG
from harness.base.errors import UsageError
from harness.evaluation import Run, run
from harness.evaluation.attacking import AttackRecord, attack_scene
from harness.evaluation.derived import _of_control
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings
from harness.results import CellResult, ResultDocument, RunFolder, read_results
from harness.scoring import image_strict


@pytest.fixture
def informed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attacks that count as informed."""
    for attack in (CPL, IDLG):
        monkeypatch.setattr(attack, "tier", "informed")


def of(document: ResultDocument, control: str | None) -> list[CellResult]:
    return [made for made in document.cells if made.control == control]


def test_it_guesses_the_victims_of_the_cell_once_for_all_informed_attacks(
    small: Any, tmp_path: Path, informed: None
) -> None:
    common = {"prior": "auto", "victims": 30, "seeds": (3, 4)}
    settings = small.cell(**common)
    document = small.play([settings, small.cell(attack="idlg", **common)], tmp_path)
    (blind,) = of(document, "blind")
    assert (blind.attack, blind.victims, blind.seeds) == ("blind", 60, [3, 4])
    stage = Stage(Path("no data root"), 64)
    scene = stage.set(settings)
    guesses = stage.split(settings).prior.means[scene.truth.labels].reshape(scene.truth.images.shape)
    by_luck = int(image_strict(scene.truth.images, guesses).sum())
    for made in of(document, None):
        (check,) = [check for check in made.controls if check.name == "blind"]
        assert check.held and check.kind == "negative" and check.cells == [blind.key]
        assert made.kappa == check.by_luck == blind.asr["strict"]
        assert (made.kappa.successes, made.kappa.n) == (by_luck, 60)
        assert made.prior is not None and (made.prior.name, made.prior.size) == ("digits, public half", 899)
    assert document.valid and read_results(tmp_path).cells[0].kappa == of(document, None)[0].kappa
    # Files that were written when it was said otherwise are read as they are, and nothing else of them is believed.
    older = check.model_copy(update={"detail": check.detail.replace("by chance", "by luck")})
    edited = older.model_copy(update={"held": False})
    assert older != check and [_of_control(one, ANY, [blind]) for one in (older, edited)] == [older, older]


def test_who_knows_no_public_data_has_no_blind_control(small: Any, tmp_path: Path, informed: None) -> None:
    cells = [small.cell(prior="none"), small.cell(attack="dlg", prior="auto"), small.cell(attack="blind", prior="auto")]
    cells[2] = cells[2].model_copy(update={"attack_args": {}})
    document = small.play(cells, tmp_path)
    assert not of(document, "blind") and [made.kappa for made in of(document, None)] == [None] * 3
    assert [made.prior is None for made in of(document, None)] == [True, False, False]


@pytest.mark.parametrize(
    ("failing", "valid"),
    [
        pytest.param({0}, True, marks=pytest.mark.slow),
        ({0, 1_000_003}, False),
    ],
)
def test_a_guess_that_leaks_under_two_keys_makes_the_run_invalid(
    small: Any, tmp_path: Path, informed: None, failing: set[int], valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prophet(settings: CellSettings, scene: Scene, *rest: Any) -> AttackRecord:
        record = attack_scene(settings, scene, *rest)
        if settings.attack != "blind" or settings.seeds[0] not in failing:
            return record
        return replace(record, reconstruction=replace(record.reconstruction, images=scene.truth.images))

    monkeypatch.setattr(run, "attack_scene", prophet)
    document = small.play([small.cell(prior="auto", victims=20)], tmp_path)
    assert [made.seeds for made in of(document, "blind")] == [[0], [1_000_003]]
    assert document.valid == valid
    if not valid:
        assert "negative control blind failed for cpl against none at T2.step" in (document.valid_reason or "")


def test_a_guess_that_is_impossible_leaves_the_cell_inconclusive(
    small: Any, tmp_path: Path, informed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stubborn(settings: CellSettings, *rest: Any) -> AttackRecord:
        if settings.attack == "blind":
            raise UsageError("no guess can be made")
        return attack_scene(settings, *rest)

    monkeypatch.setattr(run, "attack_scene", stubborn)
    document = small.play([small.cell(prior="auto", defense="pruning")], tmp_path)
    (made,), (blind,) = of(document, None), of(document, "blind")
    assert document.valid and made.kappa is None
    assert [check.detail for check in made.controls if not check.held][-1] == "no guess can be made"
    assert blind.prior == made.prior is not None  # an impossible cell stands at the same place


@pytest.mark.slow
def test_forty_guesses_through_noise_never_leak(small: Any, tmp_path: Path) -> None:
    """Their p-values are those of chance: a label is all that they had."""
    settings = small.cell(attack="blind", attack_args={}, prior="auto", victims=40, defense="fed_cdp")
    evaluating = Run(Path("no data root"), RunFolder(tmp_path), chunk=64)
    cells = [evaluating.cell(settings.model_copy(update={"seeds": (seed,)}), "blind").cell for seed in range(40)]
    assert "leaks" not in {made.verdict for made in cells}
    p_values = np.array([made.lineup.p_value for made in cells])
    assert p_values.mean() > 0.35 and (p_values < 0.05).sum() <= 6
