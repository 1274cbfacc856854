"""What noise costs in privacy: epsilon, delta, how long a budget lasts, or how much noise it takes."""

import math
from typing import Any

from pydantic import StrictBool

from harness.base.arguments import typed
from harness.base.errors import UsageError
from harness.base.limits import forecast
from harness.privacy import compose
from harness.privacy.accountant import asked_delta, choice
from harness.privacy.answers import (
    Row,
    chosen_accountants,
    delta_at,
    rounds_lasting,
    sigma_needed,
    spent,
    steps_lasting,
)
from harness.privacy.budget import STOP_RULES, StopRule
from harness.privacy.releases import Releases
from harness.privacy.schedule import schedule_rounds

_MOST_EPSILON = 1e6
# As measured on two cores: of each accountant that groups the steps of a schedule, and of what convolves equal ones.
_SECONDS_PER_SIGMA, _SECONDS_PER_STEP = 3e-4, 2e-5


@typed
def account(
    *, sigma: float | None = None, sampling_rate: float | None = None, steps: int | None = None,
    delta: float | None = None, accountant: list[str] | None = None, conversion: str | None = None,
    orders: str | None = None, formula: str | None = None, e0: str | None = None, sampler: str | None = None,
    adjacency: str | None = None, layers: int = 1, clients: int = 1, mechanism: str = "gaussian", bits: int = 32,
    dimensions: int = 10_000, sigma_schedule: str | None = None, sigma_end: float | None = None,
    rounds: int | None = None, target_epsilon: float | None = None, stop: str = "filter",
    epsilon: float | None = None, exact: StrictBool = False,
) -> dict[str, Any]:  # fmt: skip
    """The document of ``harness account --json``: ``settings``, and in ``rows`` one answer per accountant.

    The arguments are the command's options.

    Raises:
        UsageError: a value is out of its range, two do not go together, or one is missing.
    """
    delta = asked_delta(1e-5 if delta is None else delta)
    _check_numbers(sigma, target_epsilon, epsilon)
    rule = choice(stop, STOP_RULES, "stop rule")
    releases = Releases(sampling_rate, sampler, adjacency, layers, clients, mechanism, bits, dimensions)
    accountants = chosen_accountants(
        releases.accountants if accountant is None else accountant, conversion, orders, formula, e0, exact
    )
    if sigma_schedule is not None:
        sigmas = schedule_rounds(sigma_schedule, sigma, sigma_end, rounds, steps)
        count = sum(map(len, sigmas))
        forecast(count * len(accountants) * _SECONDS_PER_SIGMA, f"accounting for {count} sigmas")
        events = [compose(releases.of(value, 1) for value in one) for one in sigmas]
        if target_epsilon is not None:
            rows = rounds_lasting(accountants, events, target_epsilon, delta, rule)
        else:
            rows = _cost(accountants, compose(events), delta, epsilon)
        asked = f"schedule {sigma_schedule}: {len(sigmas)} rounds, {count} steps"
        asked += f", sigma {sigmas[0][0]:.4g} to {sigmas[-1][-1]:.4g}"
    else:
        _refuse_schedule_options(sigma_end, rounds)
        asked = "" if sigma is None else f"sigma {sigma:g}"
        asked += "" if steps is None else f"{', ' if asked else ''}{steps} steps"
        if steps is not None and any(accountant.name == "pld" for accountant in accountants):
            forecast(steps * _SECONDS_PER_STEP, f"accounting for {steps} steps by their loss distribution")
        rows = _constant(accountants, releases, sigma, steps, target_epsilon, epsilon, delta, rule)
    settings = {"asked": asked, "target_epsilon": target_epsilon, **releases.settings()}
    return {"settings": settings, "rows": rows}


def _check_numbers(sigma: float | None, target: float | None, epsilon: float | None) -> None:
    if sigma is not None and not (math.isfinite(sigma) and sigma > 0):
        raise UsageError(f"--sigma must be above 0, got {sigma:g}; without noise no epsilon holds")
    if target is not None and epsilon is not None:
        raise UsageError("both --target-epsilon and --epsilon were given; choose one")
    for name, value in (("epsilon", epsilon), ("target-epsilon", target)):
        if value is not None and not 0 <= value <= _MOST_EPSILON:
            raise UsageError(f"--{name} must be at least 0 and at most {_MOST_EPSILON:g}, got {value:g}")


def _refuse_schedule_options(sigma_end: float | None, rounds: int | None) -> None:
    for name, value in (("--sigma-end", sigma_end), ("--rounds", rounds)):
        if value is not None:
            raise UsageError(f"{name} belongs to a schedule; add --sigma-schedule linear, or use --steps")


def _cost(accountants: list, event: Any, delta: float, epsilon: float | None) -> list[Row]:
    return spent(accountants, event, delta) if epsilon is None else delta_at(accountants, event, epsilon)


def _constant(
    accountants: list, releases: Releases, sigma: float | None, steps: int | None, target: float | None,
    epsilon: float | None, delta: float, stop: StopRule,
) -> list[Row]:  # fmt: skip
    """The answers for equal steps."""
    if sigma is None and target is None:
        raise UsageError("no noise named; add --sigma 6, --sigma-schedule linear, or --target-epsilon 1 to find it")
    if sigma is not None and target is not None:
        if steps is not None:
            raise UsageError("--sigma, --steps and --target-epsilon were all given; leave one out to compute it")
        return steps_lasting(accountants, lambda count: releases.of(sigma, count), target, delta, stop)
    if steps is None:
        raise UsageError("no number of steps; add --steps 10000")
    if target is not None:
        return sigma_needed(accountants, lambda value: releases.of(value, steps), target, delta)
    assert sigma is not None  # one of both was named
    return _cost(accountants, releases.of(sigma, steps), delta, epsilon)
