"""Is measured noise of the declared law? Its size is another question (:mod:`harness.evaluation.declared_noise`)."""

import torch
from scipy.stats import kstwo, laplace, norm, uniform
from torch import Tensor

from harness.base.vectors import Layout, group_sums, spread
from harness.observation import Law, Noise

ON_A_GRID = ("skellam", "poisson_binomial")
_OF_VARIANCE_ONE = {"laplace": laplace(scale=0.5**0.5), "uniform": uniform(-(3**0.5), 2 * 3**0.5)}


def law_p_value(added: Tensor, declared: Noise, there: Tensor, layout: Layout) -> float | None:
    """The chance that noise of the declared law lies as far from it as this does, or farther; None of an unknown law.

    Where nobody knows the level, that of each row (and tensor) is estimated, which makes the distance smaller and the
    p-value larger: what is right passes more often than it need.

    Args:
        added: (..., P), the noise of each row.
        there: which of its coordinates count, booleans of the same shape.
        layout: of the P coordinates.
    """
    if declared.law == "unknown":
        return None
    level = (
        _levels(added, there, layout.groups(declared.grouping)) if declared.deviation is None else declared.deviation
    )
    return distance_from_law((added / level)[there], declared.law)[1]


def distance_from_law(values: Tensor, law: Law) -> tuple[float, float]:
    """How far numbers (N,) lie from a law of variance 1, and the chance that its own lie as far, or farther.

    The distance is that of Kolmogorov and Smirnov, between the shares of numbers below a value and the law's. Laws on a
    grid are compared with the Gaussian that they come close to, and the share of the most frequent value is no part of
    the distance.
    """
    values = values.double().sort().values
    count = len(values)
    below = torch.as_tensor(_OF_VARIANCE_ONE.get(law, norm()).cdf(values.cpu()), dtype=torch.float64)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(steps[1:] - below, below - steps[:-1]).max())
    if law in ON_A_GRID:
        distance -= int(torch.unique_consecutive(values, return_counts=True)[1].max()) / count
    return distance, float(kstwo.sf(distance, count))


def _levels(added: Tensor, there: Tensor, groups: tuple[int, ...]) -> Tensor:
    """The root mean square of each row's group of coordinates, of those that are there: (..., P)."""
    squares = group_sums(added.square() * there, groups)
    return spread((squares / group_sums(there.double(), groups).clamp_min(1)).sqrt().clamp_min(1e-300), groups)
