"""From what training sees to the distances of Bayesian accounting.

Source: Triastcyn and Faltings, section V; see docs/accounting.md.

``sigma`` is always the standard deviation of the noise on the same quantity as the distances. The paper adds C*sigma to
the *mean*, which is C*sigma*n on the sum.
"""

import math

import numpy as np

from harness.base.errors import UsageError
from harness.privacy.bayesian import Array, Samples


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
