"""The strongest attack decides: every branch of the rule, attack by attack."""

from dataclasses import replace

import pytest

from harness.base.kinds import IMAGES, ROWS, TEXTS, Kind
from harness.results import Lineup
from harness.scoring import Attempt, strongest


def leaks(name: str = "a", successes: int = 64, confirmed: int = 60, p: float | None = 2e-4) -> Attempt:
    """Accurate images that are significant in themselves, and a lineup."""
    return Attempt(name, "leaks", None, confirmed, successes, 64, Lineup(p_value=p, confirmed_p_value=1e-4))


def by_lineup(name: str = "a", p: float = 5e-4, confirmed: int = 0) -> Attempt:
    lineup = Lineup(p_value=p, confirmed_p_value=0.02)
    return Attempt(name, "leaks", None, confirmed, confirmed, 64, lineup)


def resists(name: str = "b", successes: int = 0, victims: int = 64, p: float = 0.5) -> Attempt:
    return Attempt(name, "resilient", None, 0, successes, victims, Lineup(p_value=p, confirmed_p_value=1))


def unsure(name: str = "c", successes: int = 0, victims: int = 64) -> Attempt:
    return Attempt(name, "inconclusive", None, 0, successes, victims, Lineup(p_value=0.3, confirmed_p_value=1))


def idle(attempt: Attempt) -> Attempt:
    """The same cell of an attack that does not leak undefended."""
    return replace(attempt, obstacle="the attack does not leak even undefended")


def untested(attempt: Attempt) -> Attempt:
    """The same cell in a document from before accurate images were tested."""
    return replace(attempt, lineup=Lineup(p_value=attempt.lineup.p_value))


NINE = [resists(f"r{number}") for number in range(9)]
DECISIONS = {
    "one leak": ([leaks()], "leaks", "a"),
    "a leak beside resilience": ([resists(), leaks()], "leaks", "a"),
    "the leak with most victims is the strongest": ([leaks("a", 9), leaks("b", 40), resists()], "leaks", "b"),
    "the sharper lineup among equals": ([by_lineup("a", 9e-4), by_lineup("b", 2e-4)], "leaks", "b"),
    "a leak is evidence whatever the controls say": ([idle(leaks()), resists()], "leaks", "a"),
    "a lineup alone is a leak": ([by_lineup(), resists()], "leaks", "a"),
    "a lineup of an attack that does not work too": ([idle(by_lineup()), resists()], "leaks", "a"),
    "a lineup without decoys is no lineup": ([leaks(p=None), resists()], "leaks", "a"),
    "ten attacks, each tested at 0.001": ([by_lineup(p=9.9e-4), *NINE], "leaks", "a"),
    "among more a lineup must be sharper": ([by_lineup(p=9.9e-4), *NINE, resists()], "inconclusive", "a"),
    "and one that is counts": ([by_lineup(p=2e-4), *NINE, resists()], "leaks", "a"),
    "accurate images are tested among as many": ([leaks(confirmed=2, p=0.2), *NINE, resists()], "leaks", "a"),
    "and stand by p-values of their own": ([by_lineup(p=9.9e-4, confirmed=2), *NINE, resists()], "inconclusive", "a"),
    "one accurate image is a lineup's leak": ([leaks(confirmed=1, p=9.9e-4), *NINE, resists()], "inconclusive", "a"),
    "a document without that p-value stands": ([untested(leaks(confirmed=2, p=0.2)), *NINE, resists()], "leaks", "a"),
    "resilient": ([resists()], "resilient", "b"),
    "resilient beside one that cannot tell": ([unsure(), resists()], "resilient", "b"),
    "resilient beside one that does not work": ([idle(unsure()), resists()], "resilient", "b"),
    "an idle attack never supports resilience": ([idle(resists())], "inconclusive", None),
    "nor beside one that is unsure": ([idle(resists("a")), unsure()], "inconclusive", "c"),
    "one that works and reconstructs some": ([resists(), unsure(successes=3)], "inconclusive", "c"),
    "one that does not work and reconstructs some": ([resists(), idle(unsure(successes=3))], "inconclusive", "b"),
    "too few victims everywhere": ([unsure("a", victims=8), unsure("b", victims=8)], "inconclusive", "a"),
    "no attack is possible": ([], "inconclusive", None),
}


def told(identifies: bool, obstacle: str | None = None) -> Attempt:
    """An attack that reconstructs nothing and knows the noise."""
    verdict = "inconclusive" if identifies else "resilient"
    return Attempt("identify", verdict, obstacle, 0, 0, 64, Lineup(), identifies, informed=True)


NOT_KNOWN = "by attackers who do not know the noise"
IDENTIFYING = {
    "it makes nothing leak": ([told(True)], "inconclusive", "identifies: identify tells the truth among look-alikes"),
    "nor resilient alone": ([told(False)], "inconclusive", "no attack that reconstructs was tried"),
    "resilience is told with it": ([resists(), told(True)], "inconclusive", "identifies: identify tells the truth"),
    "a leak stays one": ([leaks(), told(True)], "leaks", "a: images come back"),
    "plain attackers alone": ([resists()], "resilient", NOT_KNOWN),
    "an informed one that does not work": ([resists(), told(False, "it fails undefended")], "resilient", NOT_KNOWN),
    "an informed one that withstood": ([resists(), told(False)], "resilient", "at most 4.6% of victims"),
    "an informed reconstruction": ([replace(resists(), informed=True)], "resilient", "at most 4.6% of victims"),
}


@pytest.mark.parametrize("case", IDENTIFYING)
def test_what_only_identifies_and_who_knows_the_noise(case: str) -> None:
    attempts, verdict, words = IDENTIFYING[case]
    decision = strongest(attempts, noisy=True)
    assert decision.verdict == verdict and words in decision.reason
    assert (NOT_KNOWN in decision.reason) == (words == NOT_KNOWN)
    assert NOT_KNOWN not in strongest(attempts, noisy=False).reason


FORM = "an attacker that knows the defense was not tried and withstood"
FORMED: dict[str, tuple[list[Attempt], str, str]] = {
    "plain attackers alone": ([resists(), resists("d")], "inconclusive", f"{FORM}; add --attack auto"),
    "an informed one that does not work": ([resists(), told(False, "it fails")], "inconclusive", FORM),
    "an informed one that is not fit": (
        [resists(), replace(resists("map"), informed=True, flags=("stalled",))], "inconclusive", FORM,
    ),
    "an informed one that withstood": (
        [resists(), replace(resists("map"), informed=True)], "resilient", "; bound: none",
    ),
    "one that tells truths": ([resists(), told(False)], "resilient", "at most 4.6%"),
    "a plain leak is a leak": ([leaks()], "leaks", "images come back"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMED)
@pytest.mark.parametrize("noisy", [False, True])
def test_a_defense_without_declared_noise_is_resilient_only_to_who_knows_it(case: str, noisy: bool) -> None:
    attempts, verdict, words = FORMED[case]
    decision = strongest(attempts, noisy=noisy, formed=True)
    assert decision.verdict == verdict and words in decision.reason, decision.reason
    if verdict == "inconclusive":
        assert strongest(attempts, noisy=noisy).verdict == "resilient"  # of noise that is declared, or no defense


@pytest.mark.parametrize("case", DECISIONS)
def test_the_rule(case: str) -> None:
    attempts, verdict, attack = DECISIONS[case]
    decision = strongest(attempts)
    assert (decision.verdict, decision.attack) == (verdict, attack), decision.reason
    assert decision.reason and "\n" not in decision.reason


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ([], "no attack is possible"),
        ([idle(resists())], "no attack is known to work"),
        ([unsure()], "no attack leaks, but none that works there shows resilience (c)"),
        ([unsure(victims=8), idle(unsure(victims=64))], "8 victims are too few to show resilience (needs 59)"),
        ([unsure(victims=1)], "but 1 victim is too few to show resilience (needs 59)"),
        ([resists(), unsure(successes=3)], "c may reconstruct as many as 11.7% of victims"),
        ([resists(), resists("d", successes=1, victims=100)], "each reconstructs at most 4.7% of victims"),
        ([resists(victims=65)], "each reconstructs at most 4.6% of victims"),  # of 4.504%
        ([leaks(), leaks("d"), resists()], "a, d of 3 attacks: images come back"),
        ([by_lineup(), resists()], "a of 2 attacks: traces come back, nearer to their own truth than to look-alikes"),
        ([by_lineup(confirmed=2), resists()], "a of 2 attacks: traces come back"),
        ([leaks(), by_lineup("d")], "a of 2 attacks: images come back; d: traces come back"),
        ([untested(leaks(confirmed=2, p=0.2))], "a: images come back"),
        ([by_lineup(p=9.9e-4), *NINE, resists()], "no longer significant among 11 attacks"),
    ],
)
def test_the_reason(attempts: list[Attempt], words: str) -> None:
    assert words in strongest(attempts).reason


def test_the_order_of_attacks_changes_no_verdict() -> None:
    for attempts, verdict, _ in DECISIONS.values():
        assert strongest(attempts[::-1]).verdict == verdict


# Attackers of several examples: who reconstructs and knows the defense, and who tells members.
REBUILDS = replace(resists("slope"), informed=True, several=True)
MEMBERS = replace(told(False), several=True)
SEVERAL: dict[str, tuple[list[Attempt], str, str]] = {
    "one attack that was named": ([resists("cpl")], "inconclusive", "add --attack auto"),
    "optimizers and one who knows the noise": ([resists(), replace(resists("map"), informed=True)], "inconclusive",
                                               "reconstructs several and knows the defense and a membership test were"),
    "both withstood": ([resists(), REBUILDS, MEMBERS], "resilient", "at most 4.6%"),
    "no membership test": ([resists(), REBUILDS], "inconclusive", "behind one observation, and a membership test was"),
    "none that reconstructs several": ([resists(), MEMBERS], "inconclusive", "several and knows the defense was"),
    "one that does not know the defense": ([resists(), replace(REBUILDS, informed=False), MEMBERS], "inconclusive",
                                           "several and knows the defense was"),
    "one that does not work": ([resists(), idle(REBUILDS), MEMBERS], "inconclusive",
                               "slope: the attack does not leak even undefended"),
    "one that is not fit": ([resists(), replace(REBUILDS, flags=("level unread",)), MEMBERS], "inconclusive",
                            "slope: level unread"),
    "a test that could not tell": ([resists(), REBUILDS, replace(MEMBERS, verdict="inconclusive")], "inconclusive",
                                   "identify: it could not tell"),
    "a test of one example alone": ([resists(), REBUILDS, told(False)], "inconclusive", "a membership test was"),
    "members are told": ([resists(), REBUILDS, replace(told(True), several=True)], "inconclusive", "identifies:"),
    "an image is told": ([replace(by_lineup("slope"), several=True), MEMBERS], "leaks", "traces come back"),
}  # fmt: skip


@pytest.mark.parametrize("case", SEVERAL)
def test_several_examples_need_attackers_that_are_fit_for_them(case: str) -> None:
    attempts, verdict, words = SEVERAL[case]
    decision = strongest(attempts, noisy=True, examples=4)
    assert decision.verdict == verdict and words in decision.reason, decision.reason
    assert strongest(attempts, examples=1).verdict != "inconclusive" or any(one.identifies for one in attempts)
    # Who tells members was tried: nobody is asked to try it.
    assert "not tried" not in decision.reason or not any(one.identifies for one in attempts)


def test_who_is_missing_for_several_is_named_with_why_once() -> None:
    refused = [(replace(unsure("identify"), several=True, informed=True), "no public examples"), (unsure(), "tables")]
    reason = strongest([resists(), REBUILDS], suite=True, examples=4, refused=refused).reason
    assert reason.endswith("a membership test was not tried and withstood; identify: no public examples")
    unfit = replace(REBUILDS, flags=("stalled",))
    reason = strongest([resists(), unfit, replace(unfit, told=True)], suite=True, examples=4).reason
    assert reason.count("slope: stalled") == 1


GUESSED = replace(resists("cpl"), informed=True, flags=("label inference at chance",))
KNOWN_LABELS = replace(GUESSED, flags=(), told=True)
LABELS: dict[str, tuple[list[Attempt], str, str]] = {
    "guessed alone": ([GUESSED], "inconclusive", "label inference at chance"),
    "withstood where they are known": ([GUESSED, KNOWN_LABELS], "resilient", "even to attackers who know the labels"),
    "what leaks where they are known": (
        [GUESSED, replace(leaks("cpl"), told=True)], "inconclusive", "where they are known, cpl: images",
    ),
    "what does not work where they are known": (
        [GUESSED, idle(KNOWN_LABELS)], "inconclusive", "where they are known, no attack is known to work",
    ),
    "a leak of guessed ones": ([leaks("map"), GUESSED, KNOWN_LABELS], "leaks", "map of 2 attacks: images come back"),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS)
def test_who_knows_the_labels_is_asked_where_they_are_guessed(case: str) -> None:
    attempts, verdict, words = LABELS[case]
    decision = strongest(attempts, suite=True)
    assert decision.verdict == verdict and words in decision.reason, decision.reason


@pytest.mark.parametrize(("kind", "said"), [(IMAGES, "images"), (ROWS, "table rows"), (TEXTS, "texts")])
def test_what_comes_back_is_called_what_it_is(kind: Kind, said: str) -> None:
    assert strongest([replace(leaks("span"), kind=kind)]).reason == f"span: {said} come back"
