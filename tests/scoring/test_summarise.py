"""Cells become summary rows: what belongs together, and what a cell says about its attack."""

from typing import Any

import pytest

from harness.reports.text import headed
from harness.results import CellResult, Control, Identified, Lineup, Outcomes
from harness.scoring.summarise import summarise

HELD = (Control(name="positive", held=True), Control(name="swap", held=True))


def made(attack: str, verdict: str = "resilient", **changes: Any) -> CellResult:
    facts: dict[str, Any] = {
        "dataset": "digits", "model": "mlp", "defense": "fed_cdp", "defense_args": {"sigma": 6.0}, "attack": attack,
        "surface": 2, "tap": "T2.step", "seeds": [0], "victims": 64, "verdict": verdict, "controls": list(HELD),
        "outcomes": Outcomes(failure=64), "lineup": Lineup(rate=0.0, mean_rank=0.5, p_value=1.0), "key": attack,
        "noise": "gaussian",
    }  # fmt: skip
    return CellResult(**(facts | changes))


def test_attacks_on_one_place_are_one_row() -> None:
    (row,) = summarise([made("dlg"), made("cpl")])
    assert (row.verdict, row.strongest, row.dataset, row.tap, row.observations) == (
        "resilient", "dlg", "digits", "T2.step", 1,
    )  # fmt: skip
    assert [(one.attack, one.cell, one.informative, one.reason) for one in row.attacks] == [
        ("dlg", "dlg", True, None),
        ("cpl", "cpl", True, None),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "cancer"}, {"model": "lenet"}, {"defense": "none"}, {"defense_args": {"sigma": 1.0}},
        {"tap": "T1.out", "surface": 1}, {"tap": "T0.post", "surface": None}, {"seeds": [1]}, {"batch_size": 2},
        {"local_steps": 2}, {"update_model": "avg"}, {"round": 3}, {"observations": 4}, {"cohort": {"clients": 9}},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_what_is_not_the_attack_parts_rows(change: dict[str, Any]) -> None:
    rows = summarise([made("cpl"), made("dlg", "inconclusive", **change)])
    assert [(row.verdict, row.strongest) for row in rows] == [("resilient", "cpl"), ("inconclusive", "dlg")]


def test_what_attackers_know_and_tell_stands_in_the_row() -> None:
    told = Identified(rate=0.9, n=64, p_value=2e-4, identifies=True)
    one = made("identify", "inconclusive", tier="informed", noise="gaussian", identified=told, lineup=Lineup())
    (row,) = summarise([made("cpl", noise="gaussian"), one])
    assert (row.verdict, row.strongest, row.tier, row.identifies) == (
        "inconclusive", "cpl", "informed", True,
    )  # fmt: skip
    assert row.verdict_reason.startswith("identifies: identify") and row.headline.startswith("tells who took part: 58")
    assert [(standing.tier, standing.identifies) for standing in row.attacks] == [("plain", None), ("informed", True)]
    (row,) = summarise([made("cpl", defense="none", noise=None)])
    assert (row.tier, row.identifies, row.verdict) == ("plain", None, "resilient")
    assert "noise" not in row.verdict_reason


@pytest.mark.parametrize("noise", [None, "unknown"])
def test_a_form_that_a_plain_attacker_does_not_know_is_not_withstood(noise: str | None) -> None:
    """CENSOR sends another vector, and its noise has no law: who takes it for the gradient shows nothing."""
    censor = made("cpl", defense="paper:CENSOR", noise=noise)
    (row,) = summarise([censor])
    assert row.verdict == "inconclusive" and "an attacker that knows the defense was not" in row.verdict_reason
    assert row.headline == "could not tell"
    (row,) = summarise([censor, made("map", defense="paper:CENSOR", noise=noise, tier="informed")])
    assert row.verdict == "resilient"
    (row,) = summarise([censor], plain=True)
    assert row.verdict == "resilient"  # a table of plain attackers, which says so beside it


@pytest.mark.parametrize("name", ["positive", "positive_sigma0"])
def test_an_attack_that_cannot_leak_is_uninformative(name: str) -> None:
    failed = Control(name=name, held=False, detail="the attack does not leak even undefended")
    (row,) = summarise([made("dlg", "inconclusive", controls=[failed])])
    assert (row.verdict, row.strongest, row.attacks[0].informative) == ("inconclusive", None, False)
    assert row.attacks[0].reason == "the attack does not leak even undefended"


def test_without_a_positive_control_nothing_is_known_to_work() -> None:
    (row,) = summarise([made("dlg", "inconclusive", controls=[HELD[1]])])
    assert row.attacks[0].reason == "no positive control was run"


def test_a_failed_negative_control_does_not_make_an_attack_weak() -> None:
    stalled = Control(name="noise_x100", held=False, detail="no optimizer step was taken")
    (row,) = summarise([made("dlg", "inconclusive", controls=[*HELD, stalled]), made("cpl")])
    assert (row.verdict, row.strongest, row.attacks[0].informative) == ("resilient", "cpl", True)


def test_an_impossible_attack_is_listed_and_was_not_tried() -> None:
    none = {"not_applicable_reason": "no clip there", "controls": [], "outcomes": Outcomes(not_applicable=64)}
    (row,) = summarise([made("dlg", "inconclusive", **none), made("cpl")])
    assert row.verdict == "resilient"
    assert (row.attacks[0].informative, row.attacks[0].reason) == (False, "no clip there")
    (row,) = summarise([made("dlg", "inconclusive", **none)])
    assert (row.verdict, row.verdict_reason) == ("inconclusive", "no attack is possible there")


def test_controls_are_no_attacks_on_the_defense() -> None:
    assert summarise([made("cpl", "leaks", role="control", control="positive")]) == []


def test_a_place_says_after_how_many_rounds_it_leaks() -> None:
    """Rows that differ in nothing but the rounds that were seen tell of each other; another place stays out of it."""

    def seen(rounds: int, verdict: str, **changes: Any) -> CellResult:
        tells = {"lineup": Lineup(p_value=1e-5, confirmed_p_value=1e-5)} if verdict == "leaks" else {}
        options = {"rounds_seen": rounds} if rounds > 1 else {}
        return made("cpl", verdict, options=options, **tells, **changes)

    cells = [seen(1, "resilient"), seen(4, "inconclusive"), seen(16, "leaks"), seen(64, "leaks")]
    rows = summarise([*cells, seen(1, "resilient", batch_size=2), seen(4, "leaks", batch_size=4)])
    assert [(row.rounds_tried, row.leaks_after) for row in rows[:4]] == [([1, 4, 16, 64], 16)] * 4
    assert [(row.rounds_tried, row.leaks_after) for row in rows[4:]] == [([], None), ([4], 4)]
    assert headed(rows[0]).startswith("leaks after 16 rounds, of the numbers tried (1, 4, 16, 64); ")
    held = summarise(cells[:2])[0]
    assert headed(held).startswith("no leak found after any number of rounds tried (1, 4); ")
    assert "rounds tried" not in headed(rows[4])
