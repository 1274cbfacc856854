"""The most targets of many that any attacker wins at once (docs/accounting.md).

A limit says how often any attacker wins one target, whatever is known of all others. It says nothing of how wins go
together: as far as it goes, all targets of a victim may be won together or none. Here is what follows for many.

Let C(x) be the most, and F(x) = 1 - C(1 - x) the least, that an event can have whose probability under a reference that
does not depend on the target is x. C is concave. Targets are independent. Whether one is won follows from the output
and that target, and its blind probability is at most kappa.

Theorem 1, of m targets. Take any r >= 0 with C(kappa x) - r F((1 - kappa) x) <= d for all x in [0, 1]. Then the number
of wins is N' + M. N' is no larger than a sum of m independent coins of probability r / (1 + r), and the mean of M is at
most m d. So P[N >= k] <= P[coins >= k - b] + m d / (b + 1) for every k, b and d.

Proof. Let a(D) and b(D) be the probabilities that a target is won, or not, and the output lies in D, given the targets
before it. Those after it are averaged over, which leaves limits as they are, as C is concave. Under the reference the
output says nothing of the target. With x the reference's probability of D, a(D) <= C(kappa x) and
b(D) >= F((1 - kappa) x), so a - r b is at most d on every D. Keep a win at an output with probability min(1, r b / a):
this loses wins of probability d at most, and given the output and the targets before it, a kept win has a chance of
r / (1 + r) at most. In turn for all targets, kept wins are no more than the coins.

Theorem 2, of V independent victims with n targets each. Let s_k be the least bound of theorem 1 for one victim, and
t the level at which the sum of min(s_k, t) over k = 1 .. n is n C(kappa). Then for every increasing convex function u,
E u(N) of a victim is at most that of a count N* with P[N* >= k] = min(s_k, t). For P[N >= k] falls with k, is at most
s_k, and adds up to at most n C(kappa), as the limit of each target says; of all such, min(s_k, t) has the largest sum
over k >= K for every K. With u = exp(y N), the wins of all victims reach h with probability
exp(V log E exp(y N*) - y h) at most (Chernoff), for every y > 0. Where kappas differ, the least concave functions above
r / (1 + r) and log E exp(y N*) make their mean count in place of each.

With (epsilon, delta) in place of a limit, theorem 1 is the argument of Steinke, Nasr, Jagielski 2023 ("Privacy Auditing
with One Training Run"). Swanberg et al. 2025 (arXiv 2507.08158) bound several targets by the privacy parameters and the
blind probability. The proofs here are our own, and their theorem was not available to compare with ours line by line.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from harness.privacy.mechanism import Array
from harness.privacy.reconstruction import Limit

# Probabilities at which a limit is tabulated; between two of them the larger or the smaller counts.
_BODY = np.logspace(-22, 0, 1500)
_TABLE = np.unique(np.concatenate([[0.0], _BODY, 1 - _BODY[_BODY > 1e-15]]))
_SHARES = np.logspace(-20, 0, 800)
# Blind probabilities; one in between counts as the next.
_KAPPAS = np.logspace(-7, 0, 350)
# d of theorem 1, for all targets of a victim; y of theorem 2.
_SLACKS, _SLOPES = np.logspace(-9, -0.5, 18), np.logspace(-3, 2, 120)
# Steps in which the mean of random blind probabilities is counted; each is rounded up.
_STEPS = 2**18


class Alike(NamedTuple):
    """Targets with one blind probability in common, which is itself random.

    Attributes:
        count: how many targets.
        kappas: (L,), the blind probabilities they may have in common.
        weights: (L,), how probable each of these is; they add up to 1.
    """

    count: int
    kappas: Array
    weights: Array


class Together:
    """Bounds that a limit gives for all targets of a victim, and for many victims.

    Args:
        limit: of the output's dependence on each target, whatever the others are.
        places: n, targets of a victim.
    """

    def __init__(self, limit: Limit, places: int) -> None:
        self._limit, self._places = limit, places
        self._most = np.array([limit.ceiling(float(one)) for one in _TABLE])
        self._least = np.array([limit.floor(float(one)) for one in _TABLE])

    def coins(self, kappas: Array, slack: float) -> Array:
        """The probabilities r / (1 + r) (K,) of theorem 1 at blind probabilities (K,) and d, ``slack`` > 0."""
        # Between two shares the largest gain is at most that at the upper one, and the least loss that at the lower.
        above = self._most[np.minimum(np.searchsorted(_TABLE, kappas[:, None] * _SHARES), len(_TABLE) - 1)]
        below = self._least[np.searchsorted(_TABLE, (1 - kappas[:, None]) * _SHARES[:-1], "right") - 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.where(above[:, 1:] > slack, (above[:, 1:] - slack) / below, 0.0).max(1)
        odds[above[:, 0] > slack] = np.inf
        return 1 - 1 / (1 + odds)

    def wins(self, kappa: float) -> Array:
        """P[N* >= k] (n,) of theorem 2, k = 1 .. n, at a blind probability."""
        return self._wins[np.searchsorted(_KAPPAS, kappa)]

    @cached_property
    def _wins(self) -> Array:
        """Probabilities P[N* >= k] (K, n) of theorem 2, k = 1 .. n, at all blind probabilities of the table."""
        counts, bounds = np.arange(1, self._places + 1), np.ones((len(_KAPPAS), self._places))
        for slack in _SLACKS:
            chance = _concave(self.coins(_KAPPAS, float(slack) / self._places))[:, None]
            for spare in {0, 1, 2, 4, self._places // 2}:
                left = counts - spare
                # Of coins that differ, the tail is below that of as many of their mean from one above it on.
                tail = np.where(left >= self._places * chance + 1, stats.binom.sf(left - 1, self._places, chance), 1.0)
                bounds = np.minimum(bounds, tail + slack / (spare + 1))
        bounds = np.minimum.accumulate(bounds, axis=1)
        mean = self._places * np.array([self._limit.ceiling(float(one)) for one in _KAPPAS])
        low, high = np.zeros(len(_KAPPAS)), np.ones(len(_KAPPAS))
        for _ in range(60):
            level = (low + high) / 2
            enough = np.minimum(bounds, level[:, None]).sum(1) >= mean
            low, high = np.where(enough, low, level), np.where(enough, level, high)
        return np.minimum(bounds, high[:, None])

    @cached_property
    def _exponents(self) -> Array:
        """The least concave functions above log E exp(y N*), (Y, K)."""
        whole = np.concatenate([np.ones((len(_KAPPAS), 1)), self._wins, np.zeros((len(_KAPPAS), 1))], axis=1)
        powers = _SLOPES[:, None, None] * np.arange(self._places + 1)
        exponents = np.asarray(logsumexp(powers, axis=2, b=np.maximum(0.0, -np.diff(whole))))
        return np.array([_concave(row) for row in exponents])

    def tail(self, hits: int, victims: int, kappas: Array) -> Array:
        """P[wins of all victims >= hits] (K,), at most, where the mean blind probability is each of these (K,)."""
        found = np.exp(np.minimum(0.0, (victims * self._exponents - _SLOPES[:, None] * hits).min(0)))
        return found[np.searchsorted(_KAPPAS, kappas)]


@lru_cache(maxsize=16)
def together(limit: Limit, places: int) -> Together:
    """Return what a limit says of so many targets of a victim, remembered."""
    return Together(limit, places)


def several_targets(hits: int, kappas: NDArray[np.float64], limit: Limit) -> float:
    """The probability, at most, that any attacker wins at least so many of the targets of independent victims.

    Args:
        hits: h >= 0.
        kappas: (V, n), the blind probability of each target of each victim, in [0, 1].
        limit: of the output's dependence on each target, whatever the others are.
    """
    victims, places = kappas.shape
    added = one_by_one(hits, kappas, limit)
    mean = float(kappas.mean())
    if hits <= kappas.size * limit.ceiling(mean):
        return added
    return min(added, float(together(limit, places).tail(hits, victims, np.array([mean]))[0]))


def one_by_one(hits: int, kappas: NDArray[np.float64], limit: Limit) -> float:
    """Return the probability, at most, of at least so many hits, from each place alone. One place at least has its
    share of the hits, whatever ties places together."""
    victims, places = kappas.shape
    share = -(-hits // places)
    chances = [limit.ceiling(float(mean)) for mean in kappas.mean(0)]
    # Of a count below its mean no binomial of the mean is a bound.
    tails = [float(stats.binom.sf(share - 1, victims, one)) if share >= victims * one + 1 else 1.0 for one in chances]
    return min(1.0, sum(tails))


def several_groups(hits: int, victims: int, places: int, groups: Sequence[Alike], limit: Limit) -> float:
    """Return the probability, at most, that any attacker wins at least so many targets of groups. Their blind
    probabilities are random, and independent of each other's.

    Args:
        hits: h >= 0.
        victims, places: V and n; V n targets at most are in a group.
        groups: all of them.
        limit: of the output's dependence on each target, whatever the others are.
    """
    total = victims * places
    if hits <= total * limit.ceiling(sum(one.count * float(one.weights @ one.kappas) for one in groups) / total):
        return 1.0
    spectrum = np.ones(_STEPS + 1, dtype=complex)
    for one in groups:
        steps = np.ceil(one.kappas * (one.count / total * _STEPS)).astype(int)
        spectrum *= np.fft.rfft(np.bincount(steps, one.weights, minlength=2 * _STEPS)[: 2 * _STEPS])
    law = np.maximum(0.0, np.fft.irfft(spectrum, 2 * _STEPS))
    means = np.minimum(1.0, np.arange(2 * _STEPS) / _STEPS)
    return float(min(1.0, law @ together(limit, places).tail(hits, victims, means)))


def _concave(values: Array) -> Array:
    """The least concave function (K,) on the table that is nowhere, between its points either, below another one.

    Args:
        values: (K,), the other one, which increases.
    """
    places, heights = np.append(0.0, _KAPPAS), np.append(values, values[-1])
    corners: list[int] = []
    for new in range(len(places)):
        while len(corners) > 1:
            first, last = corners[-2], corners[-1]
            rise, run = heights[new] - heights[first], places[new] - places[first]
            if (heights[last] - heights[first]) * run > rise * (places[last] - places[first]):
                break
            corners.pop()
        corners.append(new)
    return np.interp(_KAPPAS, places[corners], heights[corners])
