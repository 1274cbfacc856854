"""Whether successes are more than a theorem allows: a contradiction, which only a wrong mechanism can explain.

Victims are independent, but truths of a class stand among the same look-alikes: where those happen to lie far from
what a guess is near to, the guess is first for all of them. Given D look-alikes the share of a class that is nearer to
one guess than any of them is Beta(1, D), with mean 1/(D + 1); averages over several guesses vary less. So the truths
of a class are first with one common, random blind probability. Images of one victim may share one fate: each place in
a batch is tested on its own (Bonferroni).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.privacy import Limit

# Survival probabilities at which the look-alikes' luck is cut into pieces, each taken at its luckiest end.
_LUCK = np.concatenate([np.linspace(1, 0.01, 400), np.logspace(-2, -12, 200)[1:]])


def lineup_p_value(
    first: NDArray[np.bool_], sizes: NDArray[np.int64], labels: NDArray[np.int64], limit: Limit
) -> float | None:
    """Chance of so many first places or more, were each as probable as the limit allows; None without lineups.

    Args:
        first: (V, n), who is first in its lineup.
        sizes: (V, n), how many stand in it; 1 is no lineup and is left out.
        labels: (V, n), the classes, which look-alikes are of.
        limit: the theorem's.
    """
    known: dict[int, NDArray[np.float64]] = {}

    def chances(size: int) -> NDArray[np.float64]:
        if size not in known:
            shares = 1 - np.append(_LUCK[1:], 0.0) ** (1 / (size - 1))
            known[size] = np.array([limit.ceiling(float(share)) for share in shares])
        return known[size]

    def one_place(place: int) -> float | None:
        there = sizes[:, place] > 1
        if not there.any():
            return None
        hits, total = int(first[there, place].sum()), np.ones(1)
        groups = zip(labels[there, place].tolist(), sizes[there, place].tolist(), strict=True)
        distinct, counts = np.unique(np.array(list(groups)), axis=0, return_counts=True)
        for (_, size), count in zip(distinct.tolist(), counts.tolist(), strict=True):
            total = np.convolve(total, _mixed_binomial(count, chances(size)))
        return float(min(1.0, total[hits:].sum()))

    return _over_places(first.shape[1], one_place)


def strict_p_value(strict: NDArray[np.bool_], blind: NDArray[np.float64], limit: Limit) -> float:
    """Return the p-value for strict images (V, n) whose blind probabilities are ``blind`` (V, n).

    Trials of different probabilities reach so high a number no more often than as many of their mean (Hoeffding 1956),
    and the limit of a mean is above the mean of limits.
    """

    def one_place(place: int) -> float:
        ceiling = limit.ceiling(float(blind[:, place].mean()))
        return float(stats.binom.sf(int(strict[:, place].sum()) - 1, len(strict), ceiling))

    found = _over_places(strict.shape[1], one_place)
    assert found is not None
    return found


def _mixed_binomial(count: int, chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities (count + 1,) of hits where all trials share a chance (L,) that luck has drawn."""
    weights = -np.diff(np.append(_LUCK, 0.0))
    return weights @ stats.binom.pmf(np.arange(count + 1), count, chances[:, None])


def _over_places(places: int, p_value: Callable[[int], float | None]) -> float | None:
    found = [value for value in map(p_value, range(places)) if value is not None]
    return min(1.0, len(found) * min(found)) if found else None
