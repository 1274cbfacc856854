"""Power of an attacker to tell whether one record was there, from mu, or from epsilon and delta: plain formulas.

Sources: Dong, Roth, Su 2022, "Gaussian Differential Privacy", Section 2 (mu); Kairouz, Oh, Viswanath 2015, "The
Composition Theorem for Differential Privacy" (epsilon and delta).
"""

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from statistics import NormalDist

from harness.base.kinds import plural

#: Of absent records, the share called present at which power is stated.
FALSE_ALARMS = 0.01
_NORMAL = NormalDist()
_PERCENT = re.compile(r"(\d+(?:\.\d)?)%")


def told_apart(
    false_alarms: float, *, mu: float | None = None, epsilon: float | None = None, delta: float = 0.0
) -> float:
    """Return the largest chance that a record's presence is told, in [false_alarms, 1].

    Args:
        false_alarms: the rate at which an absent record is taken for a present one, in (0, 1).
        mu: of Gaussian differential privacy; exact, and used where it is given.
        epsilon, delta: of approximate differential privacy, used where there is no mu; without both nothing is bounded.
    """
    if mu is not None:
        return _NORMAL.cdf(_NORMAL.inv_cdf(false_alarms) + mu)
    if epsilon is None:
        return 1.0
    return held(false_alarms, min(lines(false_alarms, epsilon, delta)))


def lines(false_alarms: float, epsilon: float, delta: float) -> tuple[float, float]:
    """Two straight lines above the power, at one point of the curve: of the pair, and of the exchanged pair."""
    return (
        false_alarms * math.exp(min(epsilon, 700.0)) + delta,
        1 - math.exp(-epsilon) * (1 - delta - false_alarms),
    )  # fmt: skip


def held(false_alarms: float, power: float) -> float:
    return min(1.0, max(false_alarms, power))


def lax(delta: float | None, unit: str | None, units: int | None) -> str | None:
    """Return what is wrong with a ``delta`` of at least one over the ``units`` whose data are protected, each of which
    is called a ``unit``; None where nothing is, or their number is not known."""
    if not delta or not units or delta * units < 1:
        return None
    whom = f"the {plural(units, unit or 'unit')}"
    return f"delta {delta:g} is at least one over {whom}: it allows one of them to be published whole"


def percent_up(bound: float) -> str:
    """A bound from above, in [0, 1], as a percentage with at most one decimal, rounded up: the nearest number may be
    below what was proven."""
    return f"{math.ceil(round(1000 * bound, 6)) / 10:.1f}".removesuffix(".0") + "%"


def says_as_much(said: str, found: str) -> bool:
    """Return whether two sentences are the same, but for percentages that were rounded to the nearest in the first, as
    they all were before, and are rounded up in the second."""
    steps = [
        round(10 * (float(new) - float(old)))
        for old, new in zip(_PERCENT.findall(said), _PERCENT.findall(found), strict=False)
    ]
    return said == found or (_PERCENT.sub("%", said) == _PERCENT.sub("%", found) and {*steps} <= {0, 1})


def up(bound: float, digits: int = 3) -> str:
    """A bound from above with so many digits, rounded up."""
    return _rounded(bound, digits, ROUND_CEILING)


def down(bound: float, digits: int = 3) -> str:
    """A bound from below, or of a range in which something holds, with so many digits, rounded down."""
    return _rounded(bound, digits, ROUND_FLOOR)


def _rounded(bound: float, digits: int, way: str) -> str:
    # What differs in the thirteenth digit is a rounding error of its own.
    return f"{float(Context(digits, way).create_decimal(Decimal(f'{bound:.12g}'))):.{digits}g}"
