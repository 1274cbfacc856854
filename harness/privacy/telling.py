"""How well one record's presence can be told from all that a mechanism lets out (docs/accounting.md).

An observer decides between two neighbouring datasets. At a given rate of false alarms it detects the record with some
power, and a guarantee bounds that power for every observer.

Sources: Dong, Roth, Su 2022, "Gaussian Differential Privacy" (mu); Wasserman, Zhou 2010 and Kairouz, Oh, Viswanath
2015, "The Composition Theorem for Differential Privacy" (epsilon and delta).
"""

import math

from scipy.special import ndtr, ndtri

#: The rate of false alarms at which reports say it.
FALSE_ALARMS = 0.01


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
        return float(ndtr(ndtri(false_alarms) + mu))
    if epsilon is None:
        return 1.0
    power = min(false_alarms * math.exp(min(epsilon, 700.0)) + delta, 1 - math.exp(-epsilon) * (1 - delta - false_alarms))
    return min(1.0, max(false_alarms, power))
