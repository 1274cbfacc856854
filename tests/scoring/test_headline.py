"""What a place's verdict comes to in words, and what the verdict of a suite needs beside it."""

from dataclasses import replace

import pytest

from harness.base.kinds import EVERY, IMAGES, ROWS, TEXTS, Kind
from harness.results import CellResult, Control, Identified, Lineup
from harness.scoring import Attempt, strongest
from harness.scoring.summarise import headline, summarise

PLAIN = Attempt("cpl", "resilient", None, 0, 0, 64, Lineup(p_value=0.5, confirmed_p_value=1))
KNOWS = replace(PLAIN, attack="map", informed=True)
TELLS = Attempt("identify", "resilient", None, 0, 0, 64, Lineup(), identifies=False, informed=True)
IDLE = "the attack does not leak even undefended"


def leaking(attempt: Attempt) -> Attempt:
    lineup = Lineup(p_value=2e-4, confirmed_p_value=1e-4)
    return replace(attempt, verdict="leaks", confirmed=9, successes=9, lineup=lineup)


def flagged(attempt: Attempt) -> Attempt:
    return replace(attempt, flags=("stalled: for a test",))


FOUND = Identified(rate=132 / 256, n=256, p_value=2e-5, identifies=True)
IDENTIFIES = replace(TELLS, verdict="inconclusive", identifies=True, found=FOUND)
TOOK_PART = "tells who took part: 132 of 256, p = 2e-5; no image came back"
KNOWN = "withstood 2 attacks, among them attackers who know the noise"
ALONE = "withstood 1 attack, an attacker who knows the noise"
UNKNOWN = "withstood only attackers who do not know the noise"
# Attacks of a suite, its verdict, and the words on it.
PLACES: dict[str, tuple[list[Attempt], str, str]] = {
    "who knows the noise": ([PLAIN, KNOWS], "resilient", KNOWN),
    "by telling alone": ([PLAIN, TELLS], "resilient", KNOWN),
    "one alone": ([KNOWS], "resilient", ALONE),
    "only who does not": ([PLAIN], "resilient", UNKNOWN),
    "an idle one counts for nothing": ([PLAIN, KNOWS, replace(TELLS, obstacle=IDLE)], "resilient", KNOWN),
    "one that identifies was not withstood": ([PLAIN, KNOWS, IDENTIFIES], "inconclusive", TOOK_PART),
    "one fit attack is enough": ([PLAIN, flagged(KNOWS), TELLS], "resilient", KNOWN),
    "an unfit one counts for nothing": ([flagged(PLAIN), KNOWS], "resilient", ALONE),
    "nor does one that could not tell": (
        [PLAIN, KNOWS, replace(TELLS, verdict="inconclusive")], "resilient", KNOWN,
    ),
    "none that knows was fit": ([PLAIN, flagged(KNOWS), flagged(TELLS)], "inconclusive", "could not tell"),
    "none that knows was withstood": ([PLAIN, flagged(KNOWS), IDENTIFIES], "inconclusive", TOOK_PART),
    "none that knows works": ([PLAIN, replace(KNOWS, obstacle=IDLE)], "inconclusive", "could not tell"),
    "none was fit": ([flagged(PLAIN)], "inconclusive", "could not tell"),
    "nothing was possible": ([], "inconclusive", "could not tell"),
    "a leak of an unfit one": ([PLAIN, flagged(leaking(KNOWS))], "leaks", "fell only to attackers who know the noise"),
    "a plain leak": ([leaking(PLAIN), KNOWS], "leaks", "fell to attackers who need not know the noise"),
}  # fmt: skip


DATA = {"cancer": ROWS, "adult": ROWS, "clients.csv": ROWS, "digits": IMAGES, "mine.npz": IMAGES}


@pytest.mark.parametrize("data", DATA)
def test_what_no_attack_but_one_that_tells_was_tried_on_has_its_name_too(data: str) -> None:
    cell = CellResult(
        dataset=data, model="m", defense="none", attack="identify", tap="T2.step", seeds=[0], victims=256,
        identified=FOUND, controls=[Control(name="positive", held=True)],
    )  # fmt: skip
    (row,) = summarise([cell])
    assert row.headline == TOOK_PART.replace("image", DATA[data].one)


@pytest.mark.parametrize("kind", EVERY)
def test_what_did_not_come_back_is_called_by_its_name(kind: Kind) -> None:
    """An attack that only tells does not know tables from images; others do."""
    words = headline("inconclusive", [replace(PLAIN, kind=kind), IDENTIFIES])
    assert words == TOOK_PART.replace("image", kind.one)
    alone = headline("inconclusive", [replace(IDENTIFIES, kind=TEXTS)])
    assert alone == TOOK_PART.replace("image", "text")


@pytest.mark.parametrize("case", PLACES)
def test_of_a_suite(case: str) -> None:
    attempts, verdict, words = PLACES[case]
    decision = strongest(attempts, noisy=True, suite=True)
    assert (decision.verdict, headline(decision.verdict, attempts, noisy=True)) == (verdict, words), decision.reason
    assert headline(decision.verdict, attempts) == words.replace("the noise", "the defense")


def test_the_reason_names_who_was_unfit() -> None:
    reason = strongest([PLAIN, flagged(KNOWS)], noisy=True, suite=True).reason
    assert reason == (
        "no attack leaks, but no informed attack that was fit to find anything was withstood; map: stalled: for a test"
    )
    plain = strongest([flagged(PLAIN)], suite=True).reason
    assert "no plain attack that was fit" in plain


def test_attacks_that_were_named_themselves_need_one_that_was_fit() -> None:
    for attempts, verdict, _ in PLACES.values():
        alone = strongest(attempts, noisy=True)
        fit = any(one.was_withstood for one in attempts) and not any(one.identifies for one in attempts)
        assert alone.verdict == ("resilient" if verdict == "inconclusive" and fit else verdict)
        unknown = "who do not know the noise" in alone.reason
        missing = not any(a.informed and a.was_withstood for a in attempts)
        assert unknown == (alone.verdict == "resilient" and missing)


SPARED: dict[str, tuple[list[Attempt], list[Attempt], str]] = {
    "nobody": ([leaking(KNOWS)], [], "fell only to attackers who know the noise"),
    "one who knows as much": ([leaking(KNOWS)], [TELLS], "fell only to attackers who know the noise"),
    "one who need not know": ([leaking(KNOWS)], [PLAIN, TELLS], "fell to attackers who know the noise"),
    "whoever, behind one who need not know": (
        [leaking(PLAIN)],
        [KNOWS],
        "fell to attackers who need not know the noise",
    ),
}


@pytest.mark.parametrize("case", SPARED)
def test_what_was_not_tried_is_not_said_to_have_failed(case: str) -> None:
    attempts, skipped, words = SPARED[case]
    assert headline("leaks", attempts, noisy=True, skipped=skipped) == words


ABSENT = {
    "skipped: settled by patches": "no attack leaks, but patches did not run; add --all-members",
    "attack 'patches' is not applicable: the head's weights are zero": (
        "no attack leaks, but patches reads such a network and is shut out by these weights alone"
    ),
}


@pytest.mark.parametrize("why", ABSENT)
def test_a_place_is_not_resilient_because_a_member_did_not_run(why: str) -> None:
    patches, needs = replace(PLAIN, attack="patches"), "attack 'patches' needs a vision transformer"
    assert strongest([PLAIN, KNOWS], suite=True, refused=[(patches, needs)]).verdict == "resilient"
    decision = strongest([PLAIN, KNOWS], suite=True, refused=[(patches, why)])
    assert (decision.verdict, decision.reason) == ("inconclusive", ABSENT[why])
