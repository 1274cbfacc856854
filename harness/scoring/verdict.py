"""What a cell may claim: leaks, resilient or inconclusive (docs/verdicts.md)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.results import Control, Lineup, Rate
from harness.scoring.success import upper_bound

CONFIRMED_SUCCESSES = 2
LEAK_P = 0.001
NEGATIVE_CONTROL_P = 1e-4
RESILIENT_RATE = 0.05
# Without any success the upper bound is the rate r with (1 - r)^victims = 5%.
VICTIMS_NEEDED = math.ceil(math.log(0.05) / math.log(1.0 - RESILIENT_RATE))


@dataclass(frozen=True)
class Verdict:
    """A verdict with its reason in one plain sentence."""

    verdict: Literal["leaks", "resilient", "inconclusive"]
    reason: str


def negative_control_failed(p_value: float | None) -> bool:
    """Whether a lineup p-value shows a leak where there can be none; then the run as a whole is unsound."""
    return p_value is not None and p_value < NEGATIVE_CONTROL_P


def judge(confirmed: int, strict_victims: Rate, lineup: Lineup, controls: Iterable[Control]) -> Verdict:
    """The verdict of one cell, from that cell alone.

    A leak found is a leak whatever the positive controls say; they guard only the claim of resilience, which without
    an attack that is known to work would prove nothing. That a failed negative control invalidates the run, leaks
    included, is for the run to say.

    Args:
        confirmed: images reconstructed by the strict rule *and* ranked first in their lineup.
        strict_victims: victims with any strict success among all victims.
        lineup: the lineup test.
        controls: the controls of this attack, objective, model, surface and batch size.
    """
    if confirmed >= CONFIRMED_SUCCESSES and _below(lineup.confirmed_p_value):
        words = f"{confirmed} reconstructions are accurate and nearest to their own truth"
        return Verdict("leaks", f"{words} (p = {lineup.confirmed_p_value:.2g})")
    if _below(lineup.p_value):
        words = "reconstructions are nearer to their own truth than to look-alikes"
        return Verdict("leaks", f"{words} (p = {lineup.p_value:.2g})")
    obstacle = _control_obstacle(list(controls)) or _evidence_obstacle(strict_victims, lineup.p_value)
    if obstacle is not None:
        return Verdict("inconclusive", obstacle)
    bound = upper_bound(strict_victims.successes, strict_victims.n)
    return Verdict(
        "resilient", f"no leak was found; at most {bound:.1%} of victims can be reconstructed (95% confidence)"
    )


def _below(p_value: float | None) -> bool:
    return p_value is not None and p_value < LEAK_P


def _control_obstacle(controls: list[Control]) -> str | None:
    """Why the controls do not let a lack of leaks mean anything, or None."""
    for control in controls:
        if not control.held:
            return f"{control.kind} control failed: {control.detail or control.name}"
    if not any(control.kind == "positive" for control in controls):
        return "no positive control was run, so nothing shows that the attack works at all"
    return None


def _evidence_obstacle(strict_victims: Rate, lineup_p: float | None) -> str | None:
    """Why the measurement itself does not show resilience, or None."""
    if lineup_p is None:
        return "no victim has same-class decoys, so the lineup test could not be made"
    successes, victims = strict_victims.successes, strict_victims.n
    bound = upper_bound(successes, victims)
    if bound <= RESILIENT_RATE:
        return None
    if successes == 0:
        return f"{victims} victims are too few to bound the success rate below 5% (needs {VICTIMS_NEEDED})"
    return f"{successes} of {victims} victims were reconstructed, so the success rate may be as high as {bound:.1%}"
