"""Bayesian differential privacy: what a run costs a record drawn like the others, estimated from samples.

Source: Triastcyn and Faltings, "Federated Learning with Bayesian Differential Privacy", Theorems 1-3 and
equation (5). See docs/accounting.md.

This is not differential privacy. It bounds the loss of a record (or client) that comes from the same distribution as
those sampled, not of the worst one; ``ASSUMPTIONS`` says on what it rests. ``lam`` is the Renyi order minus one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from harness.base.errors import UsageError
from harness.privacy.accountant import checked_delta, choice
from harness.privacy.events import Event, GaussianRelease, compose
from harness.privacy.rdp import Renyi
from harness.privacy.renyi_curves import log_binomial, log_sums

Array = np.ndarray
Direction = Literal["max", "L"]

DIRECTIONS: tuple[Direction, ...] = ("max", "L")
LAMBDAS = (*range(1, 65), 72, 80, 96, 112, 128, 160, 192, 224, 256)

ASSUMPTIONS = (
    "the record (or client) comes from the distribution that the samples were drawn from; no outlier is covered",
    "records (or clients) are exchangeable, and the distribution does not change from round to round",
    "the sample mean's error is Student-distributed, which heavy tails break",
    "the costs themselves depend on the data and were not released privately",
)


@dataclass(frozen=True)
class Samples:
    """Input of the estimator from one round (of one client).

    Attributes:
        distances: ||g - g'|| with and without each sampled unit, m >= 2 of them: (m,).
        sigma: standard deviation of the Gaussian noise on that same quantity, > 0.
        q: sampling rate, in (0, 1].

    Raises:
        UsageError: fewer than two samples, a negative or infinite distance, or a number out of its range.
    """

    distances: Sequence[float] | Array
    sigma: float
    q: float = 1.0

    def __post_init__(self) -> None:
        values = np.asarray(self.distances, dtype=float)
        if values.ndim != 1 or len(values) < 2:
            raise UsageError("the confidence term needs at least two sampled distances per round; sample more")
        if not (np.all(np.isfinite(values)) and np.all(values >= 0)):
            raise UsageError("distances must be finite numbers of at least 0; leave diverged clients out of the round")
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise UsageError(f"sigma must be above 0, got {self.sigma:g}; without noise no cost is finite")
        if not 0 < self.q <= 1:
            raise UsageError(f"the sampling rate must lie in (0, 1], got {self.q:g}; give batch size / data size")


def log_exponentials(samples: Samples, direction: Direction = "max", lambdas: Sequence[int] = LAMBDAS) -> Array:
    """Theorem 3 per sample: lam times the divergence of order lam + 1, the log of what is averaged: (A, m).

    ``L`` is the divergence with the unit from without it; ``max`` the larger of both directions, as the paper takes it.
    For the sampled Gaussian ``L`` is never smaller than the exact other direction; the paper's formula for that other
    direction is a bound, linear in q where ``L`` is quadratic, and costs about a third more.
    """
    choice(direction, DIRECTIONS, "direction")
    squared = (np.asarray(samples.distances, dtype=float) / samples.sigma) ** 2 / 2
    left = np.stack([_log_mean(lam + 1, samples.q, -1, squared) for lam in lambdas])
    if direction == "L":
        return left
    return np.maximum(left, np.stack([_log_mean(lam, samples.q, 1, squared) for lam in lambdas]))


def _log_mean(trials: int, q: float, sign: int, squared: Array) -> Array:
    """Log of E exp((k^2 + sign k) x), k ~ Binomial(trials, q), at every x of ``squared`` (m,): (m,)."""
    k = np.arange(trials + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        absent = np.where(k < trials, (trials - k) * np.log1p(-q), 0.0)  # 0 log 0 is 0
    weights = log_binomial(trials, k) + k * math.log(q) + absent
    return log_sums(weights + squared[:, None] * (k * k + sign * k))


def estimated_costs(logs: Array, failure: float) -> Array:
    """Equation (5): an upper confidence bound of log E exp(logs), wrong with probability ``failure``.

    Args:
        logs: one row per lam, one column per sample: (A, m), m >= 2.
        failure: the paper's delta', in (0, 1).

    Returns:
        (A,); all in logs, so that no exponential overflows.
    """
    if not 0 < failure < 1:
        raise UsageError(
            f"the estimator's failure probability must lie in (0, 1), got {failure:g}; choose delta / 1000"
        )
    count = logs.shape[1]
    largest = logs.max(axis=1)
    scaled = np.exp(logs - largest[:, None])
    quantile = _quantile(failure, count - 1)
    # Divided by m, not m - 1: the paper's sqrt(m - 1) belongs to that.
    bound = scaled.mean(axis=1) + quantile / math.sqrt(count - 1) * scaled.std(axis=1)
    with np.errstate(divide="ignore"):
        return largest + np.log(np.maximum(bound, 0.0))


@lru_cache(maxsize=4096)
def _quantile(failure: float, freedom: int) -> float:
    """The point that a Student variable exceeds with probability ``failure``."""
    return float(student.isf(failure, freedom))


def epsilon_of_costs(total: Array, delta: float, lambdas: Sequence[int] = LAMBDAS) -> float:
    """Theorem 2: the smallest epsilon, at least 0, over ``lambdas`` for costs summed over rounds (A,)."""
    return max(0.0, float(np.min((total - math.log(delta)) / np.asarray(lambdas, dtype=float))))


# From what training sees to the distances of Bayesian accounting.
#
# Source: Triastcyn and Faltings, section V; see docs/accounting.md.
#
# `sigma` is always the standard deviation of the noise on the same quantity as the distances. The paper adds C*sigma
# to the *mean*, which is C*sigma*n on the sum.


def client_samples(updates: Array, sigma: float, rate: float, divisor: int | None = None) -> Samples:
    """One round at client level, from the server's sample of clipped updates.

    Args:
        updates: one flat update per client: (n, P); or, with a ``divisor``, their norms: (n,).
        sigma: noise std on the mean of the updates.
        rate: the probability that a client takes part (the paper's alpha).
        divisor: a fixed denominator of the mean; without it the mean is over those who took part, and leaving u out
            moves it by (u - mean)/(n - 1).
    """
    updates = np.asarray(updates, dtype=float)
    if divisor is not None:
        norms = updates if updates.ndim == 1 else np.linalg.norm(updates, axis=1)
        return Samples(norms / _positive(divisor), sigma, rate)
    if updates.ndim != 2 or len(updates) < 2:
        raise UsageError("a mean over those who took part needs two updates or more, as rows; or give a fixed divisor")
    return Samples(np.linalg.norm(updates - updates.mean(axis=0), axis=1) / (len(updates) - 1), sigma, rate)


def instance_samples(norms: Array, sigma: float, batch_size: int, data_size: int) -> Samples:
    """One round of one client at instance level.

    Args:
        norms: clipped norms of the sampled examples' gradients: (m,).
        sigma: noise std on the batch's mean gradient, sum over ``batch_size``.
        batch_size: B_i, expected.
        data_size: N, all clients' examples, for ``instance sequential``; N_i, the client's, for ``instance parallel``.
    """
    return Samples(np.asarray(norms, dtype=float) / _positive(batch_size), sigma, batch_size / _positive(data_size))


def joint_samples(norms: Array, local_sigma: float, clients: int, rate: float) -> Samples:
    """One FedSGD round where only clients add noise: their noise on the mean protects the clients too.

    Args:
        norms: clipped norms of the clients' whole updates, one each: (m,).
        local_sigma: noise std that each client adds to its update.
        clients: n, expected per round; the mean divides by it, and its noise is local_sigma/sqrt(n).
        rate: the probability that a client takes part.
    """
    return Samples(
        np.asarray(norms, dtype=float) / _positive(clients), local_sigma / math.sqrt(_positive(clients)), rate
    )


def _positive(count: int) -> int:
    if count < 1:
        raise UsageError(f"a mean divides by at least 1, got {count}; give the expected number")
    return count


# Costs of many distances under one bound, read off a table: never too low, and exact at the bound itself.
#
# The log of what Theorem 3 of Triastcyn and Faltings averages is convex in the squared distance, so the chord between
# two entries of a table lies above it.

_ENTRIES = 257


def capped_logs(samples: Samples, bound: float, direction: Direction, lambdas: tuple[int, ...]) -> tuple[Array, Array]:
    """``log_exponentials`` of distances up to ``bound``, as an upper bound, and those at ``bound``: (A, m), (A,)."""
    table = _table(samples.sigma, samples.q, bound, direction, lambdas)
    share = np.minimum(np.asarray(samples.distances, dtype=float) / bound, 1.0) ** 2 * (_ENTRIES - 1)
    below = np.minimum(share.astype(int), _ENTRIES - 2)
    part = share - below
    return (1 - part) * table[:, below] + part * table[:, below + 1], table[:, -1]


@lru_cache(maxsize=32)
def _table(sigma: float, q: float, bound: float, direction: Direction, lambdas: tuple[int, ...]) -> Array:
    """Logs at evenly spaced squared distances from 0 to ``bound`` squared: (A, entries)."""
    distances = bound * np.sqrt(np.linspace(0, 1, _ENTRIES))
    return log_exponentials(Samples(distances, sigma, q), direction, lambdas)


# Bayesian accounting of whole runs: client, instance (sequential, parallel) and joint level, beside real epsilons.
#
# Source: Triastcyn and Faltings, section V; see docs/accounting.md. A round is what `round_samples` and its siblings
# below make of the norms that training saw. Every number comes with the failure probability of all its estimates, and
# with the moments accountant's epsilon of the same noise, which is differential privacy if the distances have the
# stated bound.

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
    """Return what one round costs: (A,)."""
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
