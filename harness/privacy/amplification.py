"""What sampling the units does to the Renyi curve of any mechanism, and curves between integer orders.

Poisson sampling: ``steinke`` (Steinke, "Composition of Differential Privacy and Privacy Amplification by Subsampling",
2022; neighbours: a unit or a null in its place, in both directions) and ``zhu-wang`` (Zhu and Wang 2019, Theorem 5,
three times as much per term). Without replacement: Wang, Balle, Kasiviswanathan 2019, Theorem 9 (``renyi_curves``).
See docs/accounting.md.
"""

import math
from typing import Literal

import numpy as np

from harness.privacy.renyi_curves import Orders, amplify_without_replacement, log_binomial, log_sums

Array = np.ndarray
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
