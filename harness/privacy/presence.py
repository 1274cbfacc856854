"""Power of an attacker to tell whether one record was there: the meaning of an epsilon in one number.

An attacker reads what was released and says "present" or "absent". Of the absent records a share ``false_alarms`` is
called present; what is bounded is the share of present ones that is rightly called so, the power of the test. For
mu-Gaussian privacy it is Phi(Phi^-1(false_alarms) + mu), attained. A curve delta(epsilon) bounds it by
``min over eps of e^eps false_alarms + delta(eps)``, and by the same for the exchanged pair.

Sources: Dong, Roth, Su 2022, "Gaussian Differential Privacy", Section 2 (mu, and the curve from delta(epsilon));
Kairouz, Oh, Viswanath 2015, "The Composition Theorem for Differential Privacy" (epsilon and delta).
"""

import math
from collections.abc import Callable
from functools import lru_cache

from scipy.optimize import minimize_scalar

from harness.base.presence import FALSE_ALARMS, held, lines, told_apart
from harness.privacy.accountant import Accountant
from harness.privacy.events import Event, ledger
from harness.privacy.pld import is_plain, total_mu

_MOST_EPSILON = 100.0


def told_by_curve(false_alarms: float, delta_at: Callable[[float], float]) -> float:
    """Return the bound of the test's power from the whole curve ``delta_at(epsilon)``, epsilon >= 0: the least of its
    lines."""

    def least(which: int, highest: float) -> float:
        def height(epsilon: float) -> float:
            return lines(false_alarms, epsilon, delta_at(epsilon))[which]

        # It is convex in e^eps or e^-eps, so over eps it has one lowest place, and it is flat there.
        found = minimize_scalar(height, bounds=(0.0, highest), method="bounded", options={"xatol": 1e-4})
        return min(float(found.fun), height(0.0))

    # At e^eps = 1 / false_alarms the first line is at 1. The exchanged pair's is the lower one beyond the middle only.
    power = least(0, -math.log(false_alarms))
    return held(false_alarms, power if power < 0.5 else min(power, least(1, _MOST_EPSILON)))


def told_by(accountant: Accountant, event: Event, false_alarms: float = FALSE_ALARMS) -> float:
    """Return what one accountant proves for an event, by its curve delta(epsilon)."""
    return told_by_curve(false_alarms, lambda epsilon: accountant.delta(event, epsilon))


def exact_mu(event: Event) -> float | None:
    """Mu of Gaussian noise on everybody, all releases together; None where another law was released.

    Sampled noise has no mu of its own: the smallest that holds for all epsilons is that without sampling.
    """
    spent = ledger(event)
    return total_mu(spent.releases) if spent.releases and not spent.unprotected and is_plain(spent) else None


@lru_cache(maxsize=256)
def presence(event: Event, accountants: tuple[Accountant, ...]) -> tuple[float | None, float]:
    """(mu, power at ``FALSE_ALARMS``): exact for Gaussian noise on everybody, else the least that is proven, and no mu.

    Args:
        event: what was released.
        accountants: those that hold for it.
    """
    mu = exact_mu(event)
    if mu is not None:
        return mu, told_apart(FALSE_ALARMS, mu=mu)
    return None, min((told_by(one, event) for one in accountants), default=1.0)
