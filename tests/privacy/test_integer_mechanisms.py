"""Skellam and Poisson-binomial releases: limits, enumeration, and errors that must show."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive
from scipy.stats import binom

from harness.base.errors import UsageError
from harness.privacy import GaussianRelease, MechanismRelease, PoissonBinomialSum, SkellamSum, skellam_sum
from harness.privacy.mechanism import curve_of
from harness.privacy.rdp import Renyi
from harness.secagg import SkellamGrid

WHOLE = Renyi("mironov", tuple(range(2, 256)))


def grid(bits: int = 32, noise: float = 0.43, clients: int = 10) -> SkellamGrid:
    return SkellamGrid(10250, 1.0, noise, clients, bits)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(noise=st.floats(0.2, 5), clients=st.integers(1, 50), q=st.floats(0.01, 0.3), steps=st.integers(1, 300))
def test_a_fine_grid_costs_what_gaussian_noise_costs(noise: float, clients: int, q: float, steps: int) -> None:
    fine = MechanismRelease(skellam_sum(grid(32, noise, clients)), q, "poisson", count=steps)
    same = GaussianRelease(noise * math.sqrt(clients), q, "poisson", count=steps)
    assert WHOLE.epsilon(fine, 1e-5).epsilon == pytest.approx(WHOLE.epsilon(same, 1e-5).epsilon, rel=1e-6)


def test_coarser_grids_cost_more() -> None:
    costs = [curve_of(skellam_sum(grid(bits)), 20)[9] for bits in (4, 6, 8, 32)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1] * 1.0002  # little, since the noise grows with the rounding


def test_the_curve_by_the_papers_formula() -> None:
    order, l2, l1, s, mu = 7, 1.2, 3.0, 5.0, 2.0
    excess = min(((2 * order - 1) * s * l2**2 + 6 * l1) / (4 * s**3 * mu**2), 3 * l1 / (2 * s * mu))
    assert curve_of(SkellamSum(mu, s, l2, l1), 9)[order - 1] == pytest.approx(order * l2**2 / (2 * mu) + excess)


@pytest.mark.parametrize(("shift", "variance"), [(2, 20.0), (3, 20.0), (5, 60.0)])
def test_the_bound_lies_above_the_exact_divergence(shift: int, variance: float) -> None:
    """On the integers themselves (scale 1, one coordinate) the divergence can be summed; noise told double fails."""
    z = np.arange(-80, 81)

    def log_mass(values: np.ndarray) -> np.ndarray:
        return np.log(ive(np.abs(values), variance))  # the Skellam law of two equal rates of half the variance

    assert np.exp(log_mass(z)) @ z**2 == pytest.approx(variance)
    for order in (2, 3, 5):
        exact = np.log(np.sum(np.exp(order * log_mass(z - shift) + (1 - order) * log_mass(z)))) / (order - 1)
        assert exact <= curve_of(SkellamSum(variance, 1.0, shift, shift), 6)[order - 1]
        assert exact > curve_of(SkellamSum(2 * variance, 1.0, shift, shift), 6)[order - 1]


def test_only_the_noise_that_remains_counts() -> None:
    assert skellam_sum(grid(), noisy=4).variance == pytest.approx(0.4 * skellam_sum(grid()).variance)
    assert skellam_sum(grid(noise=0.0)).noiseless


def enumerated(contributors: int, trials: int, theta: float, order: int, other: float) -> float:
    """The worst divergence over all biases of a fine set, coin by coin, in linear space."""

    def law(biases: tuple[float, ...]) -> np.ndarray:
        total = np.ones(1)
        for bias in biases:
            total = np.convolve(total, binom.pmf(np.arange(trials + 1), trials, bias))
        return total

    values = np.linspace(0.5 - theta, 0.5 + theta, 5)
    worst = 0.0
    for rest in itertools.combinations_with_replacement(values, contributors - 1):
        for first in values:
            one, two = law((first, *rest)), law((other, *rest))
            for p, q in ((one, two), (two, one)):
                worst = max(worst, math.log(np.sum(p**order * q ** (1 - order))) / (order - 1))
    return worst


@pytest.mark.parametrize(("contributors", "trials", "theta"), [
    (2, 2, 0.1), (2, 2, 0.25), (3, 3, 0.2), pytest.param(4, 1, 0.25, marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.parametrize("adjacency", ["replace", "add/remove"])
def test_poisson_binomial_by_enumeration(contributors: int, trials: int, theta: float, adjacency: str) -> None:
    curve = curve_of(PoissonBinomialSum(contributors, trials, theta, adjacency=adjacency), 16)
    other = 0.5 - theta if adjacency == "replace" else 0.5
    for order in (2, 3, 8, 16):
        assert curve[order - 1] == pytest.approx(enumerated(contributors, trials, theta, order, other), rel=1e-9)


@pytest.mark.parametrize(("contributors", "trials", "theta"), [(10, 16, 0.1), (5, 8, 0.25), (20, 2, 0.05)])
def test_extreme_others_are_the_worst(contributors: int, trials: int, theta: float) -> None:
    """Every number K of others' coins that are biased up: convex in K, so the largest value is at an end."""
    coins, order = trials * (contributors - 1), 4
    up, down = 0.5 + theta, 0.5 - theta
    values = []
    for count in range(coins + 1):
        rest = np.convolve(
            binom.pmf(np.arange(count + 1), count, up), binom.pmf(np.arange(coins - count + 1), coins - count, down)
        )
        one, two = (np.convolve(binom.pmf(np.arange(trials + 1), trials, bias), rest) for bias in (up, down))
        values.append(math.log(np.sum(one**order * two ** (1 - order))) / (order - 1))
    assert np.all(np.diff(values, 2) > -1e-12)
    ours = curve_of(PoissonBinomialSum(contributors, trials, theta, adjacency="replace"), order)[order - 1]
    assert ours == pytest.approx(max(values), rel=1e-9)


@pytest.mark.parametrize(
    ("contributors", "trials", "theta", "order", "expected"),
    [(10, 16, 0.1, 2, 0.2706), (10, 16, 0.1, 4, 0.551), (100, 64, 0.25, 2, 0.865), (1000, 16, 0.25, 2, 0.02136)],
)
def test_poisson_binomial_reference_values(
    contributors: int, trials: int, theta: float, order: int, expected: float
) -> None:
    curve = curve_of(PoissonBinomialSum(contributors, trials, theta, adjacency="replace"), 4)
    assert curve[order - 1] == pytest.approx(expected, abs=5e-4 if expected > 0.1 else 5e-6)


def test_tails_are_exact_at_high_orders() -> None:
    """The largest loss of all, m ln(p/(1-p)), bounds every order and is nearly reached: tails must not underflow."""
    contributors, trials, theta = 40, 16, 0.25
    curve = curve_of(PoissonBinomialSum(contributors, trials, theta, adjacency="replace"), 512)
    largest = trials * math.log(3)
    assert np.all(np.diff(curve) >= -1e-12)
    assert 0.8 * largest < curve[-1] < largest


def test_coordinates_add_up_and_adding_costs_less_than_replacing() -> None:
    one, ten = (curve_of(PoissonBinomialSum(9, 4, 0.1, coordinates), 20) for coordinates in (1, 10))
    assert ten == pytest.approx(10 * one)
    assert np.all(one < curve_of(PoissonBinomialSum(9, 4, 0.1, adjacency="replace"), 20))


@pytest.mark.parametrize("wrong", [{"theta": 0.0}, {"theta": 0.3}, {"contributors": 0}, {"trials": 0}])
def test_impossible_coins(wrong: dict) -> None:
    with pytest.raises(UsageError):
        PoissonBinomialSum(**({"contributors": 5, "trials": 4, "theta": 0.1} | wrong))
