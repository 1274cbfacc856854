"""Bayesian accounting of whole runs: client, instance (sequential, parallel) and joint level, beside real epsilons.

Source: Triastcyn and Faltings, section V; see docs/accounting.md. A round is what ``round_samples`` and its siblings
below make of the norms that training saw. Every number comes with the failure probability of all its estimates, and
with the moments accountant's epsilon of the same noise, which is differential privacy if the distances have the stated
bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from harness.base.errors import UsageError
from harness.privacy.accountant import checked_delta, choice
from harness.privacy.bayesian import (
    ASSUMPTIONS,
    LAMBDAS,
    Array,
    Direction,
    Samples,
    epsilon_of_costs,
    estimated_costs,
    log_exponentials,
)
from harness.privacy.bayesian_table import capped_logs
from harness.privacy.events import Event, GaussianRelease, compose
from harness.privacy.rdp import Renyi

Level = Literal["client", "client mean", "instance sequential", "instance parallel", "joint"]

# How the estimates of one round's clients become the round's cost.
_TOGETHER: dict[Level, Callable[[Array], Array]] = {
    "client": lambda costs: costs[0],
    "client mean": lambda costs: costs[0],
    "instance sequential": lambda costs: costs.sum(axis=0),
    "instance parallel": lambda costs: costs.max(axis=0),
    "joint": lambda costs: costs[0],
}

# Share of delta that all estimates together may add to it.
_FAILURE_SHARE = 0.1


@dataclass(frozen=True)
class BayesianEpsilon:
    """A Bayesian epsilon, and what one must know to read it.

    Attributes:
        level: whose participation it is about, and how clients' costs were put together.
        epsilon, delta: the bound by Chernoff.
        delta_total: ``delta`` and the probability that any of the estimates is too small.
        failure: that of each estimate, the paper's delta'.
        direction: ``max`` (the paper's) or ``L``.
        moments_epsilon: the moments accountant's (epsilon, delta) on the same noise, Mironov conversion; None where
            no bound on the distances is known.
        by_round: the epsilon after each round: (T,).
        assumptions: what the Bayesian number rests on.
        guarantee: ``BDP``: never to be read as differential privacy.
    """

    level: Level
    epsilon: float
    delta: float
    delta_total: float
    failure: float
    direction: Direction
    moments_epsilon: float | None
    by_round: tuple[float, ...]
    assumptions: tuple[str, ...]
    guarantee: Literal["BDP"] = "BDP"

    def row(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)


def bayesian_epsilon(
    rounds: Sequence[Sequence[Samples]],
    level: Level,
    delta: float,
    *,
    bound: float | None = None,
    direction: Direction = "max",
    lambdas: Sequence[int] = LAMBDAS,
    failure: float | None = None,
    local_steps: int = 1,
) -> BayesianEpsilon:
    """The Bayesian epsilon of a run.

    Args:
        rounds: for each round the samples of each estimate: one at the clients' and ``joint`` level (the server's), one
            per participating client at ``instance`` level.
        level: ``client`` (the server's mean has a fixed denominator), ``client mean`` (it is over those who took part),
            ``instance sequential``, ``instance parallel`` or ``joint``.
        delta: of the Chernoff bound, in (0, 1).
        bound: the largest distance that any unit could have, by clipping; gives the moments accountant's epsilon, and
            no estimate then exceeds the cost of that distance, which few samples otherwise do.
        direction: ``max`` as in the paper, or ``L``.
        lambdas: fixed before anything is seen; every one of them needs its own estimate to hold.
        failure: delta' of each estimate; by default all of them together add a tenth of delta.
        local_steps: of a client per round; ``joint`` allows one.

    Raises:
        UsageError: no rounds, several estimates where the level has one, a distance beyond ``bound``, or a value out
            of its range.
    """
    choice(level, tuple(_TOGETHER), "level")
    checked_delta(delta)
    _check_rounds(rounds, level, bound, lambdas, local_steps)
    estimates = sum(len(estimated) for estimated in rounds) * len(lambdas)
    failure = _FAILURE_SHARE * delta / max(estimates, 1) if failure is None else failure
    costs = [_round_cost(estimated, level, direction, tuple(lambdas), bound, failure) for estimated in rounds]
    by_round = tuple(epsilon_of_costs(total, delta, lambdas) for total in np.cumsum(costs, axis=0))
    return BayesianEpsilon(
        level, by_round[-1], delta, min(1.0, delta + estimates * failure), failure, direction,
        None if bound is None else moments_epsilon(rounds, level, bound, delta, lambdas), by_round, ASSUMPTIONS,
    )  # fmt: skip


def _round_cost(
    estimated: Sequence[Samples], level: Level, direction: Direction, lambdas: tuple[int, ...], bound: float | None,
    failure: float,
) -> Array:  # fmt: skip
    """What one round costs: (A,)."""
    costs = []
    for one in estimated:
        if bound is None:
            costs.append(estimated_costs(log_exponentials(one, direction, lambdas), failure))
        else:
            logs, most = capped_logs(one, bound, direction, lambdas)
            costs.append(np.minimum(estimated_costs(logs, failure), most))
    return _TOGETHER[level](np.stack(costs))


def moments_accountant(lambdas: Sequence[int] = LAMBDAS) -> Renyi:
    """The accountant beside Bayesian numbers: the same orders, lam + 1, and the same conversion (Mironov's)."""
    return Renyi("mironov", tuple(lam + 1 for lam in lambdas), grid=None)


def moments_epsilon(
    rounds: Sequence[Sequence[Samples]], level: Level, bound: float, delta: float, lambdas: Sequence[int] = LAMBDAS
) -> float:
    """The moments accountant (add/remove, Poisson, Mironov conversion) on the same noise, every distance at ``bound``.

    Clients' releases of a round add up where their Bayesian costs do, else the costliest client counts. Differential
    privacy if ``bound`` and the rates hold: of ``instance sequential``, only if batches are drawn from all data.
    """
    accountant = moments_accountant(lambdas)

    def event(estimated: Sequence[Samples]) -> Event:
        releases = [GaussianRelease(one.sigma / bound, one.q, "poisson" if one.q < 1 else "none") for one in estimated]
        if level == "instance sequential":
            return compose(releases)
        return GaussianRelease(
            min(one.sigma for one in releases), q := max(one.q for one in releases), "poisson" if q < 1 else "none"
        )

    return accountant.epsilon(compose(map(event, rounds)), delta).epsilon


def _check_rounds(
    rounds: Sequence[Sequence[Samples]], level: Level, bound: float | None, lambdas: Sequence[int], local_steps: int
) -> None:
    if not rounds or not all(rounds):
        raise UsageError("Bayesian accounting needs samples of every round; keep the norms of all rounds")
    if level in ("client", "client mean", "joint") and any(len(estimated) != 1 for estimated in rounds):
        raise UsageError(f"at {level} level the server makes one estimate per round; put the clients' samples together")
    if level == "joint" and local_steps != 1:
        raise UsageError(
            f"joint accounting needs one local step per round, got {local_steps}: later steps start from noisy models; "
            "take FedSGD"
        )
    if not lambdas or min(lambdas) < 1 or any(int(lam) != lam for lam in lambdas):
        raise UsageError("lambdas must be whole numbers of at least 1; choose for example 1 to 64")
    if bound is None:
        return
    if not (math.isfinite(bound) and bound > 0):
        raise UsageError(f"the bound on distances must be above 0, got {bound:g}; give the clipping bound's effect")
    largest = max(float(np.max(one.distances)) for estimated in rounds for one in estimated)
    if largest > bound * (1 + 1e-6):
        raise UsageError(f"a distance of {largest:.4g} exceeds the bound {bound:.4g}; clip, or state the true bound")
