"""Tests for attackers that won more often than a limit allows: only a wrong mechanism explains it (docs/accounting.md).

Victims are independent, but truths of a class stand among the same look-alikes: where those happen to lie far from what
a guess is near to, the guess is first for all of them. Given D look-alikes the share of a class that is nearer to one
guess than any of them is Beta(1, D), with mean 1/(D + 1); averages over several guesses vary less. So the truths of a
class are first with one common, random blind probability.

Images of one victim may share one fate, within what a limit allows of several targets at once. All images together are
one test (harness/privacy/several.py), which is strong where noise is. Each place in a batch alone is another, which is
strong where one place is hit; added over places it holds however places depend on each other. The two halve the level.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from harness.privacy.reconstruction import Limit
from harness.privacy.several import Alike, several_groups, several_targets

# Survival probabilities at which the law of the blind probability is cut into pieces, each taken at its upper end.
_CUTS = np.concatenate([np.linspace(1, 0.01, 400), np.logspace(-2, -12, 200)[1:]])
_WEIGHTS = -np.diff(np.append(_CUTS, 0.0))


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
            known[size] = np.array([limit.ceiling(float(share)) for share in _shares(size)])
        return known[size]

    def one_place(place: int) -> float | None:
        there = sizes[:, place] > 1
        if not there.any():
            return None
        hits, total = int(first[there, place].sum()), np.ones(1)
        for size, count in _of_classes(labels[there, place], sizes[there, place]):
            total = np.convolve(total, _mixed_binomial(count, chances(size)))
        return float(min(1.0, total[hits:].sum()))

    alone = _over_places(first.shape[1], one_place)
    if alone is None or first.shape[1] == 1:
        return alone
    there = sizes > 1
    groups = [Alike(count, _shares(size), _WEIGHTS) for size, count in _of_classes(labels[there], sizes[there])]
    victims, places = first.shape
    return _either(alone, several_groups(int(first[there].sum()), victims, places, groups, limit))


def strict_p_value(strict: NDArray[np.bool_], blind: NDArray[np.float64], limit: Limit) -> float:
    """Return the p-value for strict images (V, n) whose blind probabilities are ``blind`` (V, n).

    Of one place, trials of different probabilities reach so high a number no more often than as many of their mean
    (Hoeffding 1956), and the limit of a mean is above the mean of limits.
    """

    def one_place(place: int) -> float:
        ceiling = limit.ceiling(float(blind[:, place].mean()))
        return float(stats.binom.sf(int(strict[:, place].sum()) - 1, len(strict), ceiling))

    alone = _over_places(strict.shape[1], one_place)
    assert alone is not None
    if strict.shape[1] == 1:
        return alone
    return _either(alone, several_targets(int(strict.sum()), blind, limit))


def _either(alone: float, together: float) -> float:
    return min(1.0, 2 * min(alone, together))


def _shares(size: int) -> NDArray[np.float64]:
    """Blind probabilities (L,) in a lineup of a size: the share of a class that is nearer than its look-alikes."""
    return 1 - np.append(_CUTS[1:], 0.0) ** (1 / (size - 1))


def _of_classes(labels: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The size of the lineups of each class, and how many there are."""
    distinct, counts = np.unique(np.stack([labels, sizes], axis=1), axis=0, return_counts=True)
    return [(int(size), int(count)) for (_, size), count in zip(distinct, counts, strict=True)]


def _mixed_binomial(count: int, chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities (count + 1,) of hits where all trials share a chance (L,) that is itself random."""
    return _WEIGHTS @ stats.binom.pmf(np.arange(count + 1), count, chances[:, None])


def _over_places(places: int, p_value: Callable[[int], float | None]) -> float | None:
    found = [value for value in map(p_value, range(places)) if value is not None]
    return min(1.0, len(found) * min(found)) if found else None
