"""What a place's verdict comes to in a few words: withstood by whom, or not."""

from collections.abc import Sequence
from typing import Literal

from harness.scoring.strongest import Attempt

#: Of a place that is resilient though every attack that worked there carries a flag.
UNFIT = "withstood no attack that was fit to find anything"


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
        return "could not tell"
    if verdict == "leaks":
        leaking = [attempt for attempt in attempts if attempt.verdict == "leaks"]
        if all(one.tampering for one in leaking):
            return "fell only to a server that tampers"
        only = (
            "only to attackers who know" if all(one.informed for one in leaking) else "to attackers who need not know"
        )
        return f"fell {only} {known}"
    withstood = [attempt for attempt in attempts if attempt.was_withstood]
    if not withstood:
        return UNFIT
    if not any(attempt.informed for attempt in withstood):
        return f"withstood only attackers who do not know {known}"
    server = any(attempt.tampering for attempt in withstood)
    if len(withstood) == 1:
        return f"withstood 1 attack, {'a server that tampers and knows' if server else 'an attacker who knows'} {known}"
    among = f"attackers who know {known}" + (" and a server that tampers" if server else "")
    return f"withstood {len(withstood)} attacks, among them {among}"
