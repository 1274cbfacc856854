"""Whole cells under noise whose level follows the private gradient: what leaks, and where nobody reads it."""

from pathlib import Path
from typing import Any

import pytest

from harness.results import CellResult, ResultDocument

MEDIAN = {"defense": "dp_local", "defense_args": {"clipping": "median_per_tensor"}}
FOLLOWING: dict[str, dict[str, Any]] = {
    "Fed-αCDP": {"defense": "fed_acdp", "defense_args": {}},
    "by the batch": {"defense": "fed_acdp", "defense_args": {"s_mode": "batch_max", "convention": "per_example"}},
    "released code": {"defense": "fed_acdp", "defense_args": {"s_mode": "example_mean"}},
    "medians": MEDIAN,
}


def played(small: Any, folder: Path, attacks: list[str], **values: Any) -> ResultDocument:
    common = {"attack_args": {}, "model": "logistic", "dataset": "cancer", "victims": 48, "prior": "auto"}
    common = common | {"seeds": (3,)} | values
    return small.play([small.cell(attack=name, **common) for name in attacks], folder, chunk=2_000)


def asked(document: ResultDocument) -> dict[str, CellResult]:
    return {cell.attack: cell for cell in document.cells if cell.role == "cell"}


@pytest.mark.parametrize("defense", [
    pytest.param(defense, id=name, marks=() if name in ("released code", "medians") else pytest.mark.slow)
    for name, defense in FOLLOWING.items()
])  # fmt: skip
def test_the_level_gives_victims_away(defense: dict[str, Any], small: Any, tmp_path: Path) -> None:
    """That the run ends well also says that the level is measured to be what is declared."""
    document = played(small, tmp_path, ["levels", "identify"], **defense)
    made = asked(document)
    assert document.valid and made["levels"].verdict == "leaks" and made["identify"].identified is not None
    assert {check.name for check in made["levels"].controls} == {"positive", "positive_sigma0", "swap", "blind"}
    assert all(check.held for check in made["levels"].controls) and not made["identify"].warnings
    assert made["identify"].identified.identifies and made["levels"].tier == "informed"


def test_more_of_it_hides_nothing(small: Any, tmp_path: Path) -> None:
    made = asked(played(small, tmp_path, ["levels"], noise_scale=100.0, **MEDIAN))
    assert made["levels"].verdict == "leaks"


def test_lengths_that_are_sent_exactly_give_victims_away(small: Any, tmp_path: Path) -> None:
    document = played(small, tmp_path, ["levels"], defense="paper:CENSOR", defense_args={"trials": 5})
    made = asked(document)["levels"]
    assert document.valid and made.verdict == "leaks" and all(check.held for check in made.controls)


@pytest.mark.slow
def test_a_level_that_tells_nothing_is_no_resilience(small: Any, tmp_path: Path) -> None:
    """Every gradient is longer than the bound: `levels` fails, which says nothing of who reads more than lengths."""
    document = played(small, tmp_path, ["levels"], dataset="digits", victims=64, defense="fed_acdp",
                      defense_args={"clip": 0.01})  # fmt: skip
    made = asked(document)["levels"]
    assert document.valid and made.verdict == "inconclusive" and (made.lineup.p_value or 0) > 0.001
    assert any("nothing else" in warning for warning in made.warnings)


def test_a_place_whose_level_tells_is_not_resilient(small: Any, tmp_path: Path) -> None:
    """Nobody's images come back, and the truth is told among look-alikes: attackers who make nothing of the level do
    not make up for those who do."""
    names = ["map", "slope", "identify", "analytic"]
    values = {"dataset": "digits", "victims": 64, "seeds": (0,), "suite": "auto-9", **FOLLOWING["Fed-αCDP"]}
    document = played(small, tmp_path, names, **values)
    (row,) = document.summary
    assert row.identifies and row.verdict != "resilient"
    assert any("as levels is" in flag for flag in asked(document)["slope"].flags)


@pytest.mark.slow
def test_who_reads_no_level_is_not_withstood(small: Any, tmp_path: Path) -> None:
    values = {"dataset": "digits", "shared_weights": True, **FOLLOWING["Fed-αCDP"]}
    document = played(small, tmp_path, ["learned"], **values)
    made = asked(document)["learned"]
    assert made.verdict != "resilient" and "noise_x100" in {check.name for check in made.controls}


def test_fixed_noise_of_the_same_size_has_no_such_level(small: Any, tmp_path: Path) -> None:
    made = asked(played(small, tmp_path, ["levels", "identify"], defense="fed_cdp", defense_args={}))
    assert "here it follows none" in (made["levels"].not_applicable_reason or "")
    assert made["identify"].identified is not None and not made["identify"].identified.identifies
    assert "noise_x100" in {check.name for check in made["identify"].controls}


def test_who_does_not_know_the_noise_keeps_its_control(small: Any, tmp_path: Path) -> None:
    made = asked(played(small, tmp_path, ["analytic"], prior="none", **FOLLOWING["Fed-αCDP"]))
    assert "noise_x100" in {check.name for check in made["analytic"].controls}


def test_of_batches_nobody_reads_it(small: Any, tmp_path: Path) -> None:
    made = asked(played(small, tmp_path, ["levels", "map"], batch_size=2, victims=12, **MEDIAN))
    assert made["levels"].not_applicable_reason and made["map"].verdict != "resilient"
    assert any("no attack here reads all of it" in warning for warning in made["map"].warnings)
