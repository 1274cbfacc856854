"""The headline in words: for each state of a verdict what was found out, by how many attacks, and no more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.reports.html.places import decided_places
from harness.reports.html.run_data import RunData
from harness.reports.html.runs import read_runs
from harness.reports.html.verdict import Overview, verdict
from harness.results import CellResult, Control, Identified

SHOWN = Control(name="positive", held=True, detail="the attack leaks undefended")
IDLE = Control(name="positive", held=False, detail="the attack does not leak even undefended")
HELPLESS = Control(name="positive_sigma0", held=False, detail="the attack does not leak even without noise")
LEAKED = Control(name="swap", held=False, detail="lineup p = 1e-05")

NOISY: dict[str, Any] = {"noise": "gaussian"}
INFORMED: dict[str, Any] = {"attack": "map", "tier": "informed", **NOISY}
HELD: dict[str, Any] = {"verdict": "resilient", "controls": [SHOWN], **NOISY}
DOUBT: dict[str, Any] = {"verdict": "inconclusive", **NOISY}
REFUSED: dict[str, Any] = {**DOUBT, "not_applicable_reason": "it needs a linear layer", "metrics": {}, "asr": {}}
TELLS: dict[str, Any] = {"attack": "identify", "verdict": "inconclusive", "identified": Identified(p_value=0.2)}
UNFIT: dict[str, Any] = {"flags": ["stalled: the loss of most victims never left its start"]}

# Of each state the cells of fed_cdp, a kind, the headline, and how many attacks by whom.
STATES: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    "it leaks": (
        [NOISY, HELD | INFORMED], "leaks",
        "fed_cdp leaks inside the client: it fell to attackers who need not know the noise.",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise.",
    ),
    "it leaks to who knows the noise": (
        [HELD, INFORMED], "leaks",
        "fed_cdp leaks inside the client: it fell only to attackers who know the noise.",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise.",
    ),
    "resilient to who knows the noise": (
        [HELD, HELD | INFORMED], "resilient",
        "fed_cdp withstood 2 attacks, among them attackers who know the noise.",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise.",
    ),
    "resilient to plain attacks": (
        [HELD], "resilient",
        "fed_cdp withstood only attackers who do not know the noise (1 attack).",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
    "an attacker who could not tell was not withstood": (
        [HELD, HELD | INFORMED, HELD | INFORMED | TELLS], "resilient",
        "fed_cdp withstood 2 attacks, among them attackers who know the noise.",
        "3 attacks tried (cpl, map and identify): among them attackers who know the defense and its noise. Not counted "
        "as withstood, as unfit or undecided: identify.",
    ),
    "nor was one that was unfit": (
        [HELD, HELD | INFORMED | UNFIT], "resilient",
        "fed_cdp withstood only attackers who do not know the noise (1 attack).",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise. Not counted as "
        "withstood, as unfit or undecided: map.",
    ),
    "nobody was fit": (
        [HELD | UNFIT], "inconclusive",
        "About fed_cdp, we could not tell: no attack ran that was fit to find anything; cpl: stalled: the "
        "loss of most victims never left its start.",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
    "nor was one that was unfit at one place of two": (
        [HELD | {"surface": 0}, HELD | INFORMED | {"surface": 0}, HELD, HELD | INFORMED | UNFIT], "resilient",
        "fed_cdp withstood only attackers who do not know the noise (1 attack).",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise. Not counted as "
        "withstood, as unfit or undecided: map (at 1 of 2 places).",
    ),
    "resilient, most of it untried": (
        [HELD, REFUSED | INFORMED], "resilient",
        "fed_cdp withstood only attackers who do not know the noise (1 attack).",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
    "of two places the weaker counts": (
        [HELD, HELD | INFORMED, HELD | {"surface": 0}], "resilient",
        "fed_cdp withstood only attackers who do not know the noise (1 attack).",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise.",
    ),
    "the attack does not work": (
        [DOUBT | {"controls": [IDLE]}], "inconclusive",
        "About fed_cdp, we could not tell: the attack does not work on this model.",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
    "no attack works": (
        [DOUBT | {"controls": [IDLE]}, DOUBT | INFORMED | {"controls": [IDLE, HELPLESS]}], "inconclusive",
        "About fed_cdp, we could not tell: none of the 2 attacks works on this model.",
        "2 attacks tried (cpl and map): among them attackers who know the defense and its noise.",
    ),
    "it works undefended only": (
        [DOUBT | {"controls": [SHOWN, HELPLESS]}], "inconclusive",
        "About fed_cdp, we could not tell: the attack does not work through this defense even without its noise.",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
    "too few victims": (
        [DOUBT | {"controls": [SHOWN], "victims": 4}], "inconclusive",
        "About fed_cdp, we could not tell: 4 victims are too few to show resilience (needs 59).",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
    "refused": (
        [REFUSED], "impossible", "fed_cdp: not run: it needs a linear layer.", "No attack could be run.",
    ),
    "a negative control leaked": (
        [HELD | {"controls": [SHOWN, LEAKED]}], "invalid",
        "fed_cdp: no verdict, as the run is invalid.",
        "1 attack tried (cpl): its attacker does not know the defense and its noise.",
    ),
}  # fmt: skip


def overview(folder: Path, a_run: Callable[..., Path], cells: list[CellResult]) -> Overview:
    runs = read_runs([a_run(folder, cells, pictures=False)])
    return verdict(runs, decided_places(runs))


@pytest.mark.parametrize(("facts", "kind", "words", "tried"), STATES.values(), ids=STATES.keys())
def test_a_headline_claims_what_was_found_out(
    tmp_path: Path, a_cell: Callable, a_run: Callable, facts: list[dict[str, Any]], kind: str, words: str, tried: str
) -> None:
    made = overview(tmp_path, a_run, [a_cell("fed_cdp", **one) for one in facts])
    assert [(line.kind, line.words) for line in made.headline] == [(kind, words)]
    assert made.tried == tried
    assert "no leak" not in words and "every attack" not in words


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "Without a defense, private data come back."),
        ({"confirmed": 0}, "Without a defense, traces of private data come back."),
        (DOUBT | {"controls": [IDLE]}, "Without a defense, we could not tell: the attack does not work on this model."),
        (REFUSED, "Without a defense, not run: it needs a linear layer."),
    ],
)
def test_without_a_defense(
    tmp_path: Path, a_cell: Callable, a_run: Callable, facts: dict[str, Any], words: str
) -> None:
    (line,) = overview(tmp_path, a_run, [a_cell("none", **facts)]).headline
    assert line.words == words


def test_no_defense_is_none_of_those_that_leak_though_several_runs_have_it(
    tmp_path: Path, a_cell: Callable, a_run: Callable
) -> None:
    cells = [a_cell("none"), a_cell("dssgd"), a_cell("fed_sdp")]
    runs = read_runs([a_run(tmp_path / name, cells) for name in ("first", "second")])
    first, second = verdict(runs, decided_places(runs)).headline
    assert first.words == "Without a defense, private data come back."
    assert second.words.startswith("4 of 4 defenses leak somewhere: ") and "none" not in second.words


def test_several_defenses_stand_together_where_the_same_may_be_said(
    tmp_path: Path, a_cell: Callable, a_run: Callable
) -> None:
    cells = [a_cell("none"), a_cell("dssgd"), a_cell("fed_sdp"), a_cell("fed_cdp", **HELD), a_cell("noise", **HELD)]
    variants = [a_cell("quantile", defense_args={"sigma": sigma}, **DOUBT, controls=[IDLE]) for sigma in (1.0, 2.0)]
    made = overview(tmp_path, a_run, [*cells, *variants])
    assert [line.words for line in made.headline] == [
        "Without a defense, private data come back.",
        "2 of 6 defenses leak somewhere: dssgd and fed_sdp.",
        "About quantile sigma=1 and quantile sigma=2, we could not tell: the attack does not work on this model.",
        "fed_cdp and noise withstood only attackers who do not know the noise (1 attack).",
    ]


def test_without_cells_nothing_is_said_about_leakage() -> None:
    (line,) = verdict([RunData("x", Path("x"))], []).headline
    assert "nothing can be said" in line.words
