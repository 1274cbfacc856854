"""Renyi divergences of Gaussian releases, as curves over orders, for many noise multipliers at once.

dp-accounting has these for one sigma at a time and keeps its curve to itself; the Mironov conversion, schedules of
thousands of sigmas and the minimum with the unsampled curve need the curve. The tests compare both (at integer orders:
at fractional ones dp-accounting 0.6 adds an alternating series without its signs, up to half too much).

Sources: Mironov, Talwar, Zhang 2019 (Poisson sampling); Wang, Balle, Kasiviswanathan 2019, Theorem 9 (sampling
without replacement). See docs/accounting.md.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.special import gammaln, logsumexp

Array = np.ndarray
Orders = Sequence[float] | Array

# Below this sigma a step costs hundreds; the integral is then replaced by the (larger) curve without sampling.
_SMALLEST_SIGMA = 0.05
_ROWS = 1024


def gaussian(sigmas: Array, orders: Orders) -> Array:
    """Without sampling, alpha / (2 sigma^2): (S,) multipliers to (S, A) divergences."""
    return np.asarray(orders, dtype=float) / (2 * np.asarray(sigmas, dtype=float)[:, None] ** 2)


def poisson(sigmas: Array, q: float, orders: Orders) -> Array:
    """Poisson sampling at rate ``q`` in (0, 1), add/remove: (S,) multipliers to (S, A) divergences."""
    curves = gaussian(sigmas, orders)
    for first in range(0, len(sigmas), _ROWS):
        rows = slice(first, first + _ROWS)
        chunk = np.asarray(sigmas[rows], dtype=float)
        for column, order in enumerate(orders):
            moment = _binomial_moment if float(order).is_integer() else _integrated_moment
            divergence = moment(chunk, q, order) / (order - 1)
            curves[rows, column] = np.minimum(curves[rows, column], np.maximum(divergence, 0.0))
    return curves


def _binomial_moment(sigmas: Array, q: float, order: float) -> Array:
    """Log of the order's moment, an integer of 2 or more, as a binomial sum: (S,)."""
    k = np.arange(int(order) + 1)
    weights = log_binomial(int(order), k) + k * math.log(q) + (order - k) * math.log1p(-q)
    return log_sums(weights + (k * k - k) / (2 * sigmas[:, None] ** 2))


def _integrated_moment(sigmas: Array, q: float, order: float) -> Array:
    """Log of E[(1 - q + q exp((2z-1)/(2 sigma^2)))^order], z ~ N(0, sigma^2), for any order above 1: (S,).

    The trapezoid rule on an analytic integrand: its nearest singularity lies pi*sigma off the axis (in units of
    sigma), so a spacing of sigma/2 leaves an error below e^-39.
    """
    smallest = max(float(sigmas.min()), _SMALLEST_SIGMA)
    spacing = min(0.5, smallest / 2)
    nodes = np.arange(-12.0, order / smallest + 12.0, spacing)
    wide = np.maximum(sigmas, _SMALLEST_SIGMA)[:, None]
    log_ratio = nodes / wide - 1 / (2 * wide**2)
    log_mixture = np.logaddexp(math.log1p(-q), math.log(q) + log_ratio)
    density = -(nodes**2) / 2 - 0.5 * math.log(2 * math.pi) + math.log(spacing)
    moments = log_sums(order * log_mixture + density)
    return np.where(sigmas < _SMALLEST_SIGMA, np.inf, moments)


def without_replacement(sigmas: Array, q: float, orders: Orders) -> Array:
    """Sampling without replacement at rate ``q`` in (0, 1), replace-one: (S,) multipliers to (S, A) divergences.

    ``sigmas`` are over the sensitivity to replacing one unit. Never more than without sampling.
    """
    highest = math.ceil(max(orders))
    plain = gaussian(sigmas, range(1, highest + 1))
    amplified = np.stack([amplify_without_replacement(curve, q, orders) for curve in plain])
    return np.minimum(amplified, gaussian(sigmas, orders))


def amplify_without_replacement(curve: Array, q: float, orders: Orders) -> Array:
    """The bound for any mechanism run on a sample drawn without replacement at rate ``q``, for unbounded losses.

    Args:
        curve: the mechanism's divergences at the orders 1, 2, ..., J under replace-one: (J,).
        q: sampling rate in (0, 1).
        orders: orders in [1, J]; between integers (alpha - 1) times the divergence is convex and is interpolated.

    Returns:
        Divergences at ``orders``: (A,). The unsampled divergence may be smaller; take the minimum.
    """
    values = np.asarray(orders, dtype=float)
    below, above = np.floor(values).astype(int), np.ceil(values).astype(int)
    needed = np.union1d(below, above)
    moments = dict(zip(needed.tolist(), _wang_moments(curve, q, needed), strict=True))
    low = np.array([moments[order] for order in below.tolist()])
    high = np.array([moments[order] for order in above.tolist()])
    share = values - below
    return ((1 - share) * low + share * high) / (values - 1)


def _wang_moments(curve: Array, q: float, orders: Array) -> Array:
    """Theorem 9: log of the moment at integer ``orders``, 0 at order 1: (A,)."""
    j = np.arange(2, int(orders.max()) + 1)
    terms = math.log(2) + (j - 1) * curve[j - 1] + j * math.log(q)
    second = curve[1]
    # log of min(4 (e^r - 1), 2 e^r), r the divergence at order 2.
    terms[0] = min(math.log(4) + second + math.log(-math.expm1(-second)), math.log(2) + second) + 2 * math.log(q)
    allowed = orders[:, None] >= j
    logs = np.where(allowed, log_binomial(np.maximum(orders[:, None], j), j) + terms, -np.inf)
    return np.logaddexp(0.0, log_sums(logs))


def log_sums(logs: Array) -> Array:
    """Log of the sum of exponentials of each row: (R, K) to (R,)."""
    return np.asarray(logsumexp(logs, axis=1))


def log_binomial(n: Array | int, k: Array) -> Array:
    """Log of the binomial coefficient of integers 0 <= k <= n."""
    # Tables repeat few numbers many times, and gammaln is slow.
    factorials = gammaln(np.arange(int(np.max(n)) + 1) + 1.0)
    return np.asarray(factorials[n] - factorials[k] - factorials[np.subtract(n, k)])


# What sampling the units does to the Renyi curve of any mechanism, and curves between integer orders.
#
# Poisson sampling: `steinke` (Steinke, "Composition of Differential Privacy and Privacy Amplification by
# Subsampling", 2022; neighbours: a unit or a null in its place, in both directions) and `zhu-wang` (Zhu and Wang
# 2019, Theorem 5, three times as much per term). Without replacement: Wang, Balle, Kasiviswanathan 2019, Theorem 9
# (`renyi_curves`). See docs/accounting.md.

Amplification = Literal["steinke", "zhu-wang"]

AMPLIFICATIONS: tuple[Amplification, ...] = ("steinke", "zhu-wang")


def amplified(
    curve: Array,
    q: float,
    sampler: Literal["poisson", "without-replacement"],
    rule: Amplification = "steinke",
    capped: bool = True,
) -> Array:
    """The curve on a sample.

    Args:
        curve: divergences at the orders 1, 2, ..., J, J >= 2, under the sampler's adjacency: (J,).
        q: sampling rate in (0, 1).
        sampler: ``poisson`` (add/remove) or ``without-replacement`` (replace).
        rule: whose bound for Poisson sampling.
        capped: never above ``curve``, which holds with or without sampling.

    Returns:
        Divergences at the orders 1, 2, ..., J: (J,). Order 1 has the value of order 2.
    """
    orders = np.arange(2, len(curve) + 1)
    if sampler == "without-replacement":
        sampled = amplify_without_replacement(curve, q, orders)
    else:
        sampled = _poisson_moments(curve, q, orders, 1.0 if rule == "steinke" else 3.0) / (orders - 1)
    if capped:
        sampled = np.minimum(sampled, curve[1:])
    return np.concatenate([sampled[:1], sampled])


def _poisson_moments(curve: Array, q: float, orders: Array, factor: float) -> Array:
    """Log of the moment at integer ``orders``; terms from the third on times ``factor``: (A,)."""
    j = np.arange(2, int(orders.max()) + 1)
    terms = (j - 1) * curve[j - 1] + j * math.log(q) + np.where(j > 2, math.log(factor), 0.0)
    rest = np.maximum(orders[:, None] - j, 0)
    logs = log_binomial(np.maximum(orders[:, None], j), j) + rest * math.log1p(-q) + terms
    logs = np.where(orders[:, None] >= j, logs, -np.inf)
    first = (orders - 1) * math.log1p(-q) + np.log1p((orders - 1) * q)
    return np.logaddexp(first, log_sums(logs))


def between_integers(curve: Array, orders: Orders) -> Array:
    """Divergences at any ``orders`` in (1, J] from those at 1, 2, ..., J: (A,).

    (alpha - 1) times the divergence is convex and 0 at order 1, so that a straight line between integers lies above.
    """
    values = np.asarray(orders, dtype=float)
    moments = np.arange(len(curve)) * curve
    return np.interp(values, np.arange(1, len(curve) + 1), moments) / (values - 1)
