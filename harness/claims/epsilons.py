"""Epsilons by closed forms and by small loss distributions, with numpy alone, so that an answer takes no seconds.

The accountants of :mod:`harness.privacy` say the same; the tests compare both. ``mu`` is the L2 sensitivity over the
standard deviation of Gaussian noise; releases compose to the root of the sum of their squares. Every epsilon is an
upper bound.

Sources: Balle, Wang 2018, Theorem 8 (Gaussian noise, exact); Wang, Balle, Kasiviswanathan 2019, Theorem 9 (samples
without replacement); Koskela, Jälkö, Honkela 2020 and Doroshenko et al. 2022 (loss distributions); Lebeda et al. 2024
(the worst pair of Poisson samples for replacing one).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

Array = np.ndarray
Relation = Literal["replace", "zero-out", "add-remove"]


# Gaussian noise without sampling.


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), for mu > 0 and ``epsilon`` >= 0."""
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # e^eps times the second density is the density at `near`, so that nothing overflows.
    second = math.exp(-(near**2) / 2) / 2 * _scaled_tail(far / math.sqrt(2)) if abs(near) < 38 else 0.0
    return max(0.0, math.erfc(near / math.sqrt(2)) / 2 - second)


def _scaled_tail(x: float) -> float:
    """e^(x^2) erfc(x) for x >= 0; from 25 on by its asymptotic series, whose first term left out is below 1e-10."""
    if x < 25:
        return math.exp(x * x) * math.erfc(x)
    y = 1 / (2 * x * x)
    return (1 - y + 3 * y**2 - 15 * y**3 + 105 * y**4) / (x * math.sqrt(math.pi))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 at ``delta``, rounded up; infinite without noise, or without a delta above 0."""
    if math.isinf(mu) or delta <= 0:
        return math.inf
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose epsilon at ``delta`` is ``epsilon`` (above 0) at most, rounded down."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low


def classical_deviation(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the noise of the formula sensitivity sqrt(2 ln(1.25/delta)) / epsilon, which is proven up to epsilon 1."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def classical_limit(ratio: float, delta: float) -> float:
    """Return the largest epsilon up to which that formula keeps its word, 0 where it does at none.

    Args:
        ratio: the true sensitivity over the one that the formula was given.
        delta: in (0, 1).
    """

    def excess(epsilon: float) -> float:
        return gaussian_delta(ratio / classical_deviation(1.0, epsilon, delta), epsilon) - delta

    points = [2.0 ** (step / 4) for step in range(-40, 40)]
    kept = [point for point in points if excess(point) <= 0]
    if not kept:
        return 0.0
    low, high = kept[-1], 2 * kept[-1]
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return low


# Samples of fixed size, drawn without replacement, for replacing one: Renyi divergences at integer orders.


def without_replacement_epsilon(mu: float, rate: float, count: int, delta: float, highest: int = 1024) -> float:
    """Return epsilon of ``count`` releases on samples at ``rate`` in (0, 1); ``mu`` is for replacing one unit."""
    orders = np.arange(2, highest + 1)
    plain = np.arange(1, highest + 1) * mu**2 / 2
    j = np.arange(2, highest + 1)
    terms = math.log(2) + (j - 1) * plain[j - 1] + j * math.log(rate)
    second = plain[1]
    terms[0] = min(math.log(4) + second + math.log(-math.expm1(-second)), math.log(2) + second) + 2 * math.log(rate)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, highest + 1)))])
    moments = [
        _log_sum(factorials[a] - factorials[2 : a + 1] - factorials[a - 2 :: -1] + terms[: a - 1]) for a in orders
    ]
    curve = np.minimum(np.logaddexp(0.0, moments) / (orders - 1), orders * mu**2 / 2)
    return converted(count * curve, orders, delta)


def _log_sum(logs: Array) -> float:
    top = float(np.max(logs))
    return top + math.log(float(np.sum(np.exp(logs - top))))


def converted(curve: Array, orders: Array, delta: float) -> float:
    """Return epsilon of Renyi divergences (A,) at ``orders`` (A,), as Canonne, Kamath, Steinke 2020 convert them."""
    found = curve - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float(np.min(found)))


# Poisson samples: Renyi divergences at any order, which libraries report.

OPACUS_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64))
GOOGLE_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)  # dp-accounting


def renyi_epsilon(
    parts: Sequence[tuple[float, float, int]], delta: float, among: tuple[float, ...] = OPACUS_ORDERS
) -> float:
    """Return epsilon of parts (sigma, rate, steps) of Poisson-sampled Gaussian noise, at the orders of a library."""
    curves = [steps * _sampled_curve(sigma, rate, among) for sigma, rate, steps in parts]
    return converted(np.sum(curves, axis=0), np.array(among), delta)


@lru_cache(maxsize=64)
def _sampled_curve(sigma: float, rate: float, among: tuple[float, ...]) -> Array:
    """Divergences (A,) of one step, by the trapezoid rule on log E[(1 - q + q e^loss)^order]."""
    orders = np.array(among)
    if rate == 1 or sigma < _SMALLEST_SIGMA:  # where sampling hides little, and the integral is long
        return orders / (2 * sigma**2)
    spacing = min(0.5, sigma / 2)
    nodes = np.arange(-12.0, orders.max() / sigma + 12.0, spacing)
    mixture = np.logaddexp(math.log1p(-rate), math.log(rate) + nodes / sigma - 1 / (2 * sigma**2))
    density = -(nodes**2) / 2 - math.log(2 * math.pi) / 2 + math.log(spacing)
    return np.array([_log_sum(order * mixture + density) / (order - 1) for order in orders])


# Loss distributions: one step's, and their composition by Fourier transforms.

_DEVIATIONS = 10.0  # of noise beyond which a loss counts as infinite: 1e-23 of the probability
_TAIL = 1e-14  # of the probability, outside the window of a composition
_INTERVAL, _MOST_BUCKETS, _MOST_SINGLE = 5e-4, 1 << 21, 1 << 16  # buckets of a composition, and of one step
_SMALLEST_SIGMA = 0.05
_MOST_PARTS = 32  # whose loss distributions are composed
_WIDEST = 100.0  # interval, from which on buckets say nothing
_LARGEST = 1000.0  # epsilon, from which on loss distributions would be too long


@dataclass(frozen=True)
class Step:
    """One release whose loss distribution is known.

    Attributes:
        kind: ``gaussian`` (Poisson-sampled at ``rate``; noise of ``scale`` times the sensitivity to leaving one unit
            out) or ``laplace`` (pure, of epsilon 1/``scale``).
        relation: for ``gaussian``: ``zero-out`` (or ``add-remove``) or ``replace``.
    """

    kind: Literal["gaussian", "laplace"]
    scale: float
    rate: float = 1.0
    relation: Relation = "zero-out"


def composed_epsilon(parts: Sequence[tuple[Step, int]], delta: float) -> float:
    """Return epsilon at ``delta`` of steps, each so many times, as an upper bound.

    Of the two directions of leaving a unit out, the larger.
    """
    return _composed(tuple(parts), delta)


@lru_cache(maxsize=64)  # what is claimed is often what is proven
def _composed(parts: tuple[tuple[Step, int], ...], delta: float) -> float:
    both = any(step.kind == "gaussian" and step.relation != "replace" for step, _ in parts)
    return max(_one_direction(parts, delta, adding) for adding in ((False, True) if both else (False,)))


def merged(parts: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Return parts (sigma, rate, steps) with the steps of equal ones added up, by rate and sigma."""
    steps: Counter[tuple[float, float]] = Counter()
    for sigma, rate, count in parts:
        steps[rate, sigma] += count
    return [(sigma, rate, count) for (rate, sigma), count in sorted(steps.items())]


def _few(parts: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Parts that lose no less and are not too many: of near ones all steps get the least noise and the largest rate."""
    parts = merged(parts)
    size = math.ceil(len(parts) / _MOST_PARTS)
    groups = [parts[first : first + size] for first in range(0, len(parts), size)]
    return [(min(one[0] for one in group), max(one[1] for one in group), sum(one[2] for one in group))
            for group in groups]  # fmt: skip


def sampled_epsilon(parts: Sequence[tuple[float, float, int]], delta: float, relation: Relation = "zero-out") -> float:
    """Return epsilon of parts (sigma, rate, steps) of Poisson-sampled Gaussian noise: the least of several bounds."""
    scale = 2 if relation == "replace" else 1
    everybody = gaussian_epsilon(scale * math.sqrt(sum(steps / sigma**2 for sigma, _, steps in parts)), delta)
    if all(rate == 1 for _, rate, _ in parts) or min(sigma for sigma, _, _ in parts) < _SMALLEST_SIGMA:
        return everybody
    if relation == "replace" and everybody > 1e5:
        return everybody
    parts = _few(parts)
    rough = math.inf if relation == "replace" else renyi_epsilon(parts, delta)
    if _LARGEST < rough < math.inf:
        return min(everybody, rough)
    steps = [(Step("gaussian", sigma, rate, relation), count) for sigma, rate, count in parts]
    return min(everybody, rough, composed_epsilon(steps, delta))


def laplace_epsilon(epsilon: float, count: int, delta: float) -> float:
    """Return epsilon at ``delta`` of ``count`` Laplace releases of pure ``epsilon`` each; never above their sum."""
    if delta == 0:
        return count * epsilon
    return min(count * epsilon, composed_epsilon([(Step("laplace", 1 / epsilon), count)], delta))


def _one_direction(parts: Sequence[tuple[Step, int]], delta: float, adding: bool) -> float:
    """Epsilon in one direction; infinite where its losses do not fit into buckets that say anything."""
    steps = sum(count for _, count in parts)
    spans = [high - low for low, high in (_range(step, adding) for step, _ in parts)]
    interval = max(min(_INTERVAL, 1e-2 / math.sqrt(steps)), max(spans) / _MOST_SINGLE, 1e-5)
    found = None
    while interval < _WIDEST and (found := _window_of(parts, interval, adding)) is None:
        interval *= 2
    if found is None:
        return math.inf
    single, low, high = found
    size = 1 << max(4, int(high - low + 1).bit_length())
    spectrum, first, finite = np.ones(size // 2 + 1, dtype=complex), 0, 1.0
    for start, mass, lost, count in single:
        wrapped = np.bincount(np.arange(len(mass)) % size, weights=mass, minlength=size)
        spectrum = spectrum * np.fft.rfft(wrapped) ** count
        first, finite = first + start * count, finite * (1 - lost) ** count
    mass = np.fft.irfft(spectrum, size)
    mass = np.maximum(np.roll(mass, (first - low) % size), 0.0)
    error = 2 * _TAIL + 1e-15 * steps
    return _epsilon_of(mass, low, interval, delta - error - (1 - finite))


Single = list[tuple[int, Array, float, int]]


def _window_of(parts: Sequence[tuple[Step, int]], interval: float, adding: bool) -> tuple[Single, int, int] | None:
    """Each step's buckets, and those between which the composed loss lies; None where they are too many."""
    if any(high - low > interval * _MOST_BUCKETS / 2 for low, high in (_range(step, adding) for step, _ in parts)):
        return None
    single = [(*_buckets(step, interval, adding), count) for step, count in parts]
    low, high = _window(single, interval)
    return (single, low, high) if high - low < _MOST_BUCKETS else None


def _buckets(step: Step, interval: float, adding: bool) -> tuple[int, Array, float]:
    """One step's losses: the first bucket, the probabilities from it on, and that of an infinite loss.

    Each interval between buckets gives both its probabilities to its two ends ("connect the dots").
    """
    low, high = _range(step, adding)
    start = math.floor(low / interval)
    edges = interval * np.arange(start, math.ceil(high / interval) + 2)
    upper, lower = _tails(step, edges, adding)
    mass, other = -np.diff(upper), -np.diff(lower)
    with np.errstate(divide="ignore", over="ignore"):  # log 0 is what remains of nothing
        least = np.exp(edges[:-1] + np.log(np.maximum(other, 0.0)))
    above = np.clip((mass - least) / -math.expm1(-interval), 0.0, mass)
    buckets = np.append(mass - above, 0.0) + np.append(0.0, above)
    buckets[0] += 1 - upper[0]
    return start, buckets, float(upper[-1])


def _range(step: Step, adding: bool) -> tuple[float, float]:
    if step.kind == "laplace":
        return -1 / step.scale, 1 / step.scale
    sigma, q = step.scale, step.rate
    far = np.logaddexp(math.log1p(-q), math.log(q) + (1 + 2 * _DEVIATIONS * sigma) / (2 * sigma**2))
    if step.relation == "replace":
        most = float(far) - math.log1p(-q)
        return -most, most
    return (-float(far), -math.log1p(-q)) if adding else (math.log1p(-q), float(far))


def _tails(step: Step, edges: Array, adding: bool) -> tuple[Array, Array]:
    """Probabilities of a loss above each edge, under the one and the other of two neighbours."""
    if step.kind == "laplace":
        most = 1 / step.scale
        inside = np.clip(edges, -most, most)
        # The loss is most - 2 x for noise x in (0, most), and most or -most beyond.
        upper = np.where(edges < -most, 1.0, np.where(edges >= most, 0.0, 1 - np.exp((inside - most) / 2) / 2))
        lower = np.where(edges < -most, 1.0, np.where(edges >= most, 0.0, np.exp(-(inside + most) / 2) / 2))
        return upper, lower
    sigma, q = step.scale, step.rate
    if step.relation == "replace":
        # a y^2 + (1-q)(1-e^l) y - a e^l = 0 for y = e^(x/sigma^2), a = q e^(-1/(2 sigma^2)); odd in l.
        size, a = np.abs(edges), q * math.exp(-1 / (2 * sigma**2))
        half = -(1 - q) * np.expm1(-size) / (2 * a)  # of e^-l times the equation
        root = sigma**2 * (size + np.log(half + np.sqrt(half**2 + np.exp(-size))))
        x = np.sign(edges) * root
        return _mixture(x, 1.0, sigma, q), _mixture(x, -1.0, sigma, q)
    sign = -1.0 if adding else 1.0
    shifted = np.expm1(sign * edges) + q
    with np.errstate(divide="ignore", invalid="ignore"):
        x = sign * (0.5 + sigma**2 * np.log(np.where(shifted > 0, shifted, 0.0) / q))
    plain, mixed = _normal_tail(x / sigma), _mixture(x, sign, sigma, q)
    return (plain, mixed) if adding else (mixed, plain)


def _mixture(x: Array, mean: float, sigma: float, q: float) -> Array:
    return (1 - q) * _normal_tail(x / sigma) + q * _normal_tail((x - mean) / sigma)


def _normal_tail(x: Array) -> Array:
    return np.array([math.erfc(value) for value in (x / math.sqrt(2)).tolist()]) / 2


def _window(single: Single, interval: float) -> tuple[int, int]:
    """Buckets between which the composed loss lies, but for ``_TAIL`` on each side (Chernoff's bound)."""
    losses = [interval * (start + np.arange(len(mass))) for start, mass, _, _ in single]
    least = sum(count * loss[0] for loss, (_, _, _, count) in zip(losses, single, strict=True))
    most = sum(count * loss[-1] for loss, (_, _, _, count) in zip(losses, single, strict=True))
    for power in range(-6, 8):
        order = 2.0**power
        for sign in (1.0, -1.0):
            moment = 0.0
            for loss, (_, mass, _, count) in zip(losses, single, strict=True):
                with np.errstate(divide="ignore"):
                    moment += count * _log_sum(sign * order * loss + np.log(mass))
            bound = (moment - math.log(_TAIL)) / order
            most, least = (min(most, bound), least) if sign > 0 else (most, max(least, -bound))
    return math.floor(least / interval) - 1, math.ceil(most / interval) + 1


def _epsilon_of(mass: Array, first: int, interval: float, delta: float) -> float:
    """The smallest epsilon >= 0 whose delta is ``delta`` at most; infinite where there is none."""
    if delta <= 0:
        return math.inf
    mass, first = (mass[-first:], 0) if first < 0 else (mass, first)
    most = min(len(mass), math.ceil(50 / interval))
    weights = np.exp(-interval * np.arange(1, most + 1))
    sums = np.append(np.cumsum(mass[::-1])[::-1], 0.0)

    def rest(place: int) -> tuple[float, float]:
        """Return the probability of the losses above a bucket, and their probability with weights e^-(loss -
        bucket)."""
        above = mass[place + 1 :]
        near = above[:most]  # what lies further off has no weight; leaving it out makes epsilon larger
        return float(sums[place + 1]), float(near @ weights[: len(near)])

    low, high = -1, len(mass) - 1
    while high - low > 1:
        middle = (low + high) // 2
        total, smaller = rest(middle)
        low, high = (low, middle) if total - smaller <= delta else (middle, high)
    if low < 0 and first == 0:
        return 0.0
    place = max(low, 0)
    total, smaller = rest(place)
    if total <= delta:
        return interval * (first + place)
    within = max(0.0, math.log((total - delta) / smaller)) if smaller > 0 else interval
    return interval * (first + place) + within


# Noise that is correlated over rounds, and other rules.


def tree_depth(leaves: int) -> int:
    """Return the most nodes of a tree of so many leaves that one leaf is in."""
    return math.ceil(math.log2(leaves + 1))


def toeplitz_sensitivity(column: Sequence[float], length: int, times: int = 1, apart: int = 1) -> float:
    """Return the L2 sensitivity of a lower triangular Toeplitz matrix with a column that is decreasing and positive.

    Args:
        column: its first entries; zero afterwards.
        length: rounds.
        times, apart: how often one unit takes part, and the least number of rounds between.
    """
    turns = min(times, -(-length // apart))
    whole = np.zeros((-(-length // apart), apart))  # a row for each turn, so that a column adds up all that came before
    whole.flat[: min(len(column), length)] = column[:length]
    total = np.cumsum(whole, axis=0)
    total[turns:] -= total[:-turns].copy()
    return float(np.linalg.norm(total.flat[:length]))
