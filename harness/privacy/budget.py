"""Rounds or steps that a privacy budget lasts, and the noise that it takes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from harness.base.errors import UsageError
from harness.privacy.accountant import Accountant, choice
from harness.privacy.events import Event

StopRule = Literal["paper", "filter"]
STOP_RULES: tuple[StopRule, ...] = get_args(StopRule)

_MOST_STEPS = 10**7
_LARGEST_SIGMA = 1e6


@dataclass(frozen=True)
class Stop:
    """The end of a budget.

    Attributes:
        rounds: by ``paper`` the first round after which the target is exceeded, by ``filter`` the last one that
            keeps to it (what a privacy filter runs); all rounds where the target is never exceeded.
        exceeded: whether it is exceeded at all.
        epsilon: what has been spent after ``rounds``.
    """

    rounds: int
    exceeded: bool
    epsilon: float


def rounds_within(
    accountant: Accountant, rounds: Sequence[Event], target: float, delta: float, stop: StopRule = "paper"
) -> Stop:
    """Return how many of the ``rounds`` (one event each) a target epsilon allows.

    Raises:
        UsageError: the target is not positive, or what the accountant refuses.
    """
    return _stop(accountant.spending(rounds, delta), len(rounds), target, stop)


def steps_within(
    accountant: Accountant, event_of: Callable[[int], Event], target: float, delta: float, stop: StopRule = "paper"
) -> Stop:
    """Return the number of equal steps within a target; ``event_of`` gives the event of that many steps."""
    spent = _remembered(lambda steps: accountant.epsilon(event_of(steps), delta).epsilon)
    most = 1
    while most < _MOST_STEPS and spent(most) <= target:
        most *= 2
    return _stop(spent, most, target, stop)


def _stop(spent: Callable[[int], float], most: int, target: float, stop: StopRule) -> Stop:
    choice(stop, STOP_RULES, "stop rule")
    if not (math.isfinite(target) and target > 0):
        raise UsageError(f"the target epsilon must be positive, got {target:g}; choose for example 1")
    if spent(most) <= target:
        return Stop(most, False, spent(most))
    kept, broken = 0, most  # epsilon never falls as rounds are added
    while broken - kept > 1:
        middle = (kept + broken) // 2
        kept, broken = (middle, broken) if spent(middle) <= target else (kept, middle)
    rounds = broken if stop == "paper" else kept
    return Stop(rounds, True, spent(rounds))


def sigma_for(accountant: Accountant, event_of: Callable[[float], Event], target: float, delta: float) -> float:
    """The smallest noise multiplier, within a millionth, at which ``event_of(sigma)`` costs at most ``target``.

    Raises:
        UsageError: no multiplier reaches the target, as under the bound for sampling without replacement.
    """
    if not (math.isfinite(target) and target > 0):
        raise UsageError(f"the target epsilon must be positive, got {target:g}; choose for example 1")
    spent = _remembered(lambda sigma: accountant.epsilon(event_of(sigma), delta).epsilon)
    high = 1.0
    while spent(high) > target:
        high *= 2
        if high > _LARGEST_SIGMA:
            raise UsageError(
                f"{accountant.name} reaches no epsilon of {target:g} with any noise; raise the target, take fewer "
                "steps or another accountant"
            )
    low = high / 2
    while low > 1e-3 and spent(low) <= target:
        low, high = low / 2, low
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= target else (middle, high)
    return high


def _remembered(function: Callable) -> Callable:
    values: dict = {}

    def call(argument: float) -> float:
        if argument not in values:
            values[argument] = function(argument)
        return values[argument]

    return call
