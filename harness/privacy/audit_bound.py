"""The one-run audit: how large epsilon must at least be, given how well guesses about canaries came out.

Source: Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", 2023. See docs/accounting.md.
Each of m canaries is included with probability one half, independently; the auditor guesses the k_plus likeliest to be
in and the k_minus likeliest to be out, numbers chosen before looking, and abstains on the rest.
"""

import math

import numpy as np
from scipy.stats import binom

from harness.base.errors import UsageError

_LARGEST_EPSILON = 50.0


def audit_p_value(epsilon: float, canaries: int, guesses: int, correct: int, delta: float = 0.0) -> float:
    """The p-value of the hypothesis that the mechanism is (epsilon, delta)-DP.

    Args:
        epsilon: at least 0.
        canaries: m, how many canaries were flipped.
        guesses: r = k_plus + k_minus, at most m.
        correct: how many guesses were right, at most r.
        delta: in [0, 1).
    """
    if guesses == 0:
        return 1.0
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    # The most that delta can add: P[v > X >= v - i] / i, at its worst i in 1..v.
    missed = np.arange(1, correct + 1)
    below = binom.sf(correct - missed - 1, guesses, right) - tail
    return min(1.0, tail + 2 * canaries * delta * float(np.max(below / missed)))


def audit_lower_bound(
    canaries: int, k_plus: int, k_minus: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The largest epsilon, at least 0, that the guesses refute at the given confidence.

    Raises:
        UsageError: more guesses than canaries, more right guesses than guesses, or a share out of range.
    """
    guesses = k_plus + k_minus
    if min(canaries, k_plus, k_minus, correct) < 0 or guesses > canaries or correct > guesses:
        raise UsageError(f"{correct} right of {guesses} guesses about {canaries} canaries cannot be; check the counts")
    if not 0 <= delta < 1:
        raise UsageError(f"delta must lie in [0, 1), got {delta:g}")
    if not 0 < confidence < 1:
        raise UsageError(f"the confidence must lie in (0, 1), got {confidence:g}; choose for example 0.95")
    refuted, open_ = 0.0, _LARGEST_EPSILON
    if audit_p_value(refuted, canaries, guesses, correct, delta) >= 1 - confidence:
        return 0.0
    while open_ - refuted > 1e-9:
        middle = (refuted + open_) / 2
        small = audit_p_value(middle, canaries, guesses, correct, delta) < 1 - confidence
        refuted, open_ = (middle, open_) if small else (refuted, middle)
    return refuted
