"""Scores that tell members of a training from non-members by how sure a model is of them, and how well they do.

Every example has one number per model: the log-odds of its true label. Reference models that were trained without an
example say how sure a model is of it that never saw it.

Sources: RMIA, Zarifzadeh, Liu, Shokri, "Low-Cost High-Power Membership Inference Attacks", ICML 2024, its offline form;
LiRA, Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022, its offline form with one
variance for all examples; the interval of an AUC, DeLong, DeLong, Clarke-Pearson 1988, on the scale of log-odds.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit, logit, logsumexp

from harness.scoring.success import clopper_pearson

#: Shares of non-members that an attacker accepts to call members.
ALARMS = (0.01, 0.001)
#: A share of false alarms is measured where so many non-members at least make them.
_FEWEST_ALARMS = 10
# RMIA's offline correction, of which the best on the reference models is taken.
_WEIGHTS = tuple(step / 10 for step in range(11))
# Below it a mean of probabilities is no number any more whose logarithm is finite.
_LEAST = 1e-300

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


def log_odds(logits: Numbers, labels: NDArray[np.int64]) -> Numbers:
    """log p / (1 - p) (n,) of the true labels (n,) under logits (n, K), exact where p is nearly 1."""
    rows = np.arange(len(labels))
    others = np.array(logits, dtype=np.float64)
    true = others[rows, labels].copy()
    others[rows, labels] = -np.inf
    return true - np.asarray(logsumexp(others, axis=1))


def log_probability(odds: Numbers) -> Numbers:
    """log p of log-odds, in the same shape."""
    return -np.logaddexp(0.0, -odds)


# Scores: the higher, the likelier a member.


def rmia_ratio(odds: Numbers, references: Numbers, out: Flags, weight: float) -> Numbers:
    """RMIA's log-likelihood ratio (n,): p under the model over its mean under models with and without the example.

    Args:
        odds: (n,), log-odds under the model.
        references: (R, n), under the reference models.
        out: (R, n), which of them are taken for an example: they never saw it.
        weight: a in [0, 1]. The mean with the example is taken to be a p_out + 1 - a, as no model has seen it.
    """
    p_out = np.where(out, np.exp(log_probability(references)), 0.0).sum(0) / out.sum(0)
    return log_probability(odds) - np.log(np.maximum(0.5 * ((1 + weight) * p_out + 1 - weight), _LEAST))


def rmia_score(ratios: Numbers, population: Numbers) -> Numbers:
    """The share (n,) of population points (N,) whose ratio each of some ratios (n,) exceeds."""
    return np.searchsorted(np.sort(population), ratios, side="left") / len(population)


def p_values(scores: Numbers, population: Numbers) -> Numbers:
    """The chance (n,) that a non-member's score is as high, at most: of the population (N,) and the example itself."""
    as_high = len(population) - np.searchsorted(np.sort(population), scores, side="left")
    return (1 + as_high) / (1 + len(population))


def best_weight(references: Numbers, seen: Flags) -> float:
    """The weight a with which reference models tell best what the others saw, of which the truth is known.

    Args:
        references: (R, n) log-odds; models 2i and 2i + 1 saw complementary halves of the examples; R at least 4.
        seen: (R, n), what each one saw.
    """
    pairs = np.arange(len(references)) // 2

    def told(weight: float) -> float:
        found = []
        for model, own in enumerate(seen):
            others = pairs != pairs[model]
            ratios = rmia_ratio(references[model], references[others], ~seen[others], weight)
            found.append(area(ratios[own], ratios[~own]))
        return float(np.mean(found))

    return max(_WEIGHTS, key=told)


def lira_score(odds: Numbers, references: Numbers, out: Flags) -> Numbers:
    """LiRA's offline score (n,): standard deviations of the log-odds above their mean without the example.

    With few reference models one variance, over all examples, is less noisy than one for each (their section VI).
    """
    count = out.sum(0)
    mean = np.where(out, references, 0.0).sum(0) / count
    left = np.where(out, references - mean, 0.0)
    return (odds - mean) / max(math.sqrt(float((left**2).sum()) / max(1, int((count - 1).sum()))), 1e-12)


# What scores tell.


def area(members: Numbers, others: Numbers) -> float:
    """The chance that a member's score is above a non-member's, ties counted half."""
    return float(_placements(members, others).mean())


def _placements(scores: Numbers, among: Numbers) -> Numbers:
    """The share (n,) of ``among`` below each score, ties counted half."""
    ordered = np.sort(among)
    return (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")) / (2 * len(among))


def area_interval(members: Numbers, others: Numbers, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of :func:`area`: DeLong's variance, on the scale of log-odds.

    Where all pairs are told alike that variance is 0. Then the smaller group are as many trials, all of them alike.
    """
    inside, outside = _placements(members, others), 1 - _placements(others, members)
    found = float(inside.mean())
    variance = inside.var(ddof=1) / len(members) + outside.var(ddof=1) / len(others)
    if not 0 < found < 1 or variance == 0:
        trials = min(len(members), len(others))
        return clopper_pearson(found * trials, trials, confidence)
    wide = float(stats.norm.isf((1 - confidence) / 2) * math.sqrt(variance) / (found * (1 - found)))
    return float(expit(logit(found) - wide)), float(expit(logit(found) + wide))


def area_gain(
    members: Numbers, others: Numbers, members_before: Numbers, others_before: Numbers, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return how much larger :func:`area` is than that of another score of the same examples, with a two-sided
    interval.

    The interval is DeLong's of two areas that belong together.

    Args:
        members, others: (n,) and (N,), the score.
        members_before, others_before: the same, the other one.
    """
    inside = _placements(members, others) - _placements(members_before, others_before)
    outside = _placements(others_before, members_before) - _placements(others, members)
    gain = float(inside.mean())
    deviation = math.sqrt(inside.var(ddof=1) / len(members) + outside.var(ddof=1) / len(others))
    wide = float(stats.norm.isf((1 - confidence) / 2)) * deviation
    return gain, gain - wide, gain + wide


@dataclass(frozen=True)
class FoundAt:
    """Members that are told at a share of false alarms.

    Attributes:
        alarms: the share of non-members that may be called members.
        reason: why it cannot be measured; None where it can.
        found, members: how many of how many members are above the threshold.
        low, high: Clopper-Pearson interval of their share at 95%, at this threshold.
    """

    alarms: float
    reason: str | None
    found: int | None = None
    members: int | None = None
    low: float | None = None
    high: float | None = None


def found_at(members: Numbers, others: Numbers, alarms: float) -> FoundAt:
    """Members above the lowest threshold that at most a share ``alarms`` of non-members exceed."""
    if len(others) < round(_FEWEST_ALARMS / alarms):
        return FoundAt(alarms, f"not measurable with {len(others)} non-members, {_FEWEST_ALARMS / alarms:.0f} are")
    threshold = np.sort(others)[-1 - math.floor(alarms * len(others) + 1e-9)]
    found = int((members > threshold).sum())
    return FoundAt(alarms, None, found, len(members), *clopper_pearson(found, len(members)))


@dataclass(frozen=True)
class Told:
    """Measure of how well one score tells members.

    Attributes:
        area, low, high: AUC with its 95% interval; 0.5 is chance.
        rates: at each of ``ALARMS``.
    """

    name: str
    area: float
    low: float
    high: float
    rates: tuple[FoundAt, ...]


def told(name: str, members: Numbers, others: Numbers) -> Told:
    """Return what a score (n,) of members and (N,) of non-members tells."""
    rates = tuple(found_at(members, others, alarms) for alarms in ALARMS)
    return Told(name, area(members, others), *area_interval(members, others), rates)


# Which site sent an update.


@dataclass(frozen=True)
class SitesTold:
    """Result of a test of whether updates of several rounds tell which site sent them.

    Attributes:
        right, updates: how many of how many updates go to their own site, by its updates of the other rounds.
        chance: the share that guesses get right.
        p: of a permutation test; small where sites are told.
    """

    right: int
    updates: int
    chance: float
    p: float


def site_test(updates: Numbers, permutations: int = 999, seed: int = 0) -> SitesTold:
    """A permutation test of whether sites are told by their updates.

    The mean of each round is taken away, which all sites share. What is left of a site points in the same direction in
    every round where its data differ from the others'. In permutations sites change places within each round, at
    random, as they may where nothing of an update is the site's.

    Args:
        updates: (R, S, P), what each of S sites sent in each of R rounds, at least 2 of both.
        permutations: how many; p is at least 1 / (1 + permutations), and of S sites no less than about S! to the power
            of 1 - R, so that three sites need five rounds.

    Raises:
        ValueError: fewer than two rounds or sites.
    """
    rounds, sites = updates.shape[:2]
    if min(rounds, sites) < 2:
        raise ValueError(f"{rounds} rounds of {sites} sites; take two and more of both")
    left = updates - updates.mean(1, keepdims=True)
    left /= np.maximum(np.linalg.norm(left, axis=2, keepdims=True), 1e-30)
    alike = np.einsum("asp,btp->abst", left, left)
    alike[np.arange(rounds), np.arange(rounds)] = 0.0
    guessed = alike.sum(1).argmax(2)
    right, random = int((guessed == np.arange(sites)).sum()), np.random.default_rng(seed)

    def agreement(orders: NDArray[np.int64]) -> float:
        one, two = np.arange(rounds)[:, None, None], np.arange(rounds)[None, :, None]
        return float(alike[one, two, orders[:, None], orders[None]].sum())

    found = agreement(np.tile(np.arange(sites), (rounds, 1)))
    others = [agreement(np.stack([random.permutation(sites) for _ in range(rounds)])) for _ in range(permutations)]
    # Sums in another order differ in their last digits.
    as_high = sum(one >= found - 1e-9 for one in others)
    return SitesTold(right, rounds * sites, 1 / sites, (1 + as_high) / (1 + permutations))
