"""Bayesian differential privacy: what a run costs a record drawn like the others, estimated from samples.

Source: Triastcyn and Faltings, "Federated Learning with Bayesian Differential Privacy", Theorems 1-3 and
equation (5). See docs/accounting.md.

This is not differential privacy. It bounds the loss of a record (or client) that comes from the same distribution as
those sampled, not of the worst one; ``ASSUMPTIONS`` says on what it rests. ``lam`` is the Renyi order minus one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.stats import t as student

from harness.base.errors import UsageError
from harness.privacy.accountant import choice
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
    """What one round (of one client) gives the estimator.

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


def guess_bound(epsilon: float) -> float:
    """The paper's reading of epsilon: an attacker with a flat prior guesses right with at most this probability."""
    return 1 / (1 + math.exp(-epsilon))
