"""What a place's verdict comes to in a few words: withstood by whom, or not."""

from collections.abc import Sequence
from typing import Literal

from harness.results import Identified
from harness.scoring.strongest import WHO_IS_TOLD, Attempt

#: Of a place that is resilient though every attack that worked there carries a flag.
UNFIT = "withstood no attack that was fit to find anything"

#: Where no image comes back, but membership is told.
TELLS = "tells who took part"


def headline(
    verdict: Literal["leaks", "resilient", "inconclusive"], attempts: Sequence[Attempt], noisy: bool = False
) -> str:
    """The verdict over all attacks at one place, by what those who were withstood know.

    Args:
        verdict: of the place.
        attempts: all attacks that were possible there.
        noisy: whether noise is declared on what is read there, so that knowing the defense is knowing its noise.
    """
    known = "the noise" if noisy else "the defense"
    if verdict == "inconclusive":
        return _who_took_part(attempts) or "could not tell"
    if verdict == "leaks":
        leaking = [attempt for attempt in attempts if attempt.verdict == "leaks"]
        if all(one.tampering for one in leaking):
            return "fell only to a server that tampers"
        only = (
            "only to attackers who know" if all(one.informed for one in leaking) else "to attackers who need not know"
        )
        return f"fell {only} {known}"
    # Who is told the labels is the same attacker again, and counts once.
    withstood = list({attempt.attack: attempt for attempt in attempts if attempt.was_withstood}.values())
    if not withstood:
        return UNFIT
    labels = f", {WHO_IS_TOLD}" if any(attempt.told for attempt in withstood) else ""
    if not any(attempt.informed for attempt in withstood):
        return f"withstood only attackers who do not know {known}{labels}"
    server = any(attempt.tampering for attempt in withstood)
    if len(withstood) == 1:
        who = "a server that tampers and knows" if server else "an attacker who knows"
        return f"withstood 1 attack, {who} {known}{labels}"
    among = f"attackers who know {known}" + (" and a server that tampers" if server else "")
    return f"withstood {len(withstood)} attacks, among them {among}{labels}"


def _who_took_part(attempts: Sequence[Attempt]) -> str | None:
    """Of a place where no more was found than who took part; None where not even that was."""
    found = [attempt.found for attempt in attempts if attempt.identifies and attempt.found is not None]
    if not found or any(attempt.verdict == "leaks" for attempt in attempts):
        return None
    best = min(found, key=_by_p)
    first = round((best.rate or 0.0) * best.n)
    return f"{TELLS}: {first} of {best.n}, p = {_short(best.p_value)}; no image came back"


def _by_p(found: Identified) -> tuple[float, float]:
    return 1.0 if found.p_value is None else found.p_value, -(found.rate or 0.0)


def _short(p_value: float | None) -> str:
    mantissa, _, exponent = f"{p_value or 0:.1g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
