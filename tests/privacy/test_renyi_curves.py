"""Renyi curves against dp-accounting and against the series of the literature."""

import math
import time

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, gammasgn, log_ndtr

from harness.privacy import GaussianRelease, compose, make_accountant
from harness.privacy.rdp import DENSE_ORDERS, PAPER_ORDERS, Renyi, epsilon_of_curve
from harness.privacy.renyi_curves import amplify_without_replacement, gaussian, poisson, without_replacement


def fractional_series(sigma: float, q: float, order: float) -> float:
    """Mironov, Talwar, Zhang 2019, section 3.3."""
    split = sigma**2 * math.log(1 / q - 1) + 0.5
    i = np.arange(5000.0)
    j = order - i
    left = i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * sigma**2) + log_ndtr((split - i) / sigma)
    right = j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * sigma**2) + log_ndtr((j - split) / sigma)
    sizes = gammaln(order + 1) - gammaln(i + 1) - gammaln(j + 1)
    signs = gammasgn(j + 1)
    return math.log(np.sum(signs * (np.exp(sizes + left) + np.exp(sizes + right)))) / (order - 1)


@pytest.mark.parametrize(("sigma", "q"), [(6.0, 0.01), (2.0, 0.1), (1.0, 0.05), (4.0, 0.3)])
@pytest.mark.parametrize("order", [1.25, 1.5, 2.5, 4.5, 10.9])
def test_fractional_orders_agree_with_the_series(sigma: float, q: float, order: float) -> None:
    assert poisson(np.array([sigma]), q, [order])[0, 0] == pytest.approx(fractional_series(sigma, q, order), rel=1e-6)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(sigma=st.floats(0.5, 10), q=st.floats(0.001, 0.2), steps=st.integers(1, 5000), exponent=st.floats(3, 9))
def test_epsilon_agrees_with_dp_accounting(sigma: float, q: float, steps: int, exponent: float) -> None:
    # Integer orders: dp-accounting adds the fractional series' terms without their signs and comes out too large.
    orders = [*range(2, 64), 128, 256]
    theirs = RdpAccountant(orders)
    theirs.compose(SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps))
    ours = Renyi("improved", tuple(orders)).epsilon(GaussianRelease(sigma, q, "poisson", count=steps), 10**-exponent)
    expected = theirs.get_epsilon(10**-exponent)
    # Theirs also returns 0 where the total variation is below delta.
    assert expected == 0 or ours.epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("order", [2, 3, 7])
def test_integer_and_fractional_formulas_meet(order: int) -> None:
    curve = poisson(np.array([0.8, 6.0]), 0.02, [order, order + 1e-6])
    assert curve[:, 0] == pytest.approx(curve[:, 1], abs=1e-6, rel=1e-5)


def test_fractional_orders_are_below_dp_accountings() -> None:
    theirs = RdpAccountant([1.25, 1.5, 2.5])
    theirs.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.0)), 2000))
    ours = Renyi("improved", (1.25, 1.5, 2.5)).epsilon(GaussianRelease(1.0, 0.05, "poisson", count=2000), 0.01)
    assert 0 < ours.epsilon <= theirs.get_epsilon(0.01)


def test_the_curve_grows_with_the_order_and_stays_below_no_sampling() -> None:
    sigmas = np.array([0.01, 0.06, 0.4, 1.0, 6.0, 100.0])
    for q in (0.001, 0.3, 0.9):
        curve = poisson(sigmas, q, DENSE_ORDERS)
        assert np.all(np.diff(curve, axis=1) >= -1e-12 * curve[:, 1:])
        assert np.all(curve <= gaussian(sigmas, DENSE_ORDERS))
        assert np.all(np.diff(curve, axis=0) <= 0)


def test_many_sigmas_are_computed_as_each_alone() -> None:
    sigmas = np.linspace(0.7, 9, 1500)
    together = poisson(sigmas, 0.02, PAPER_ORDERS)
    for row in (0, 1023, 1024, 1499):
        assert together[row] == pytest.approx(poisson(sigmas[row : row + 1], 0.02, PAPER_ORDERS)[0], rel=1e-9)


@pytest.mark.slow
def test_ten_thousand_distinct_sigmas() -> None:
    event = compose(GaussianRelease(sigma, 0.01, "poisson") for sigma in np.linspace(15.76, 3.71, 10_000))
    began = time.process_time()
    rounded = make_accountant("rdp").epsilon(event, 1e-5)
    assert time.process_time() - began < 5  # a third of a second on a quiet core
    exact = Renyi("improved", "dense", grid=2000).epsilon(event, 1e-5).epsilon
    assert exact < rounded.epsilon < 1.01 * exact
    assert any("upper bound" in note for note in rounded.notes)


def test_conversions() -> None:
    orders, curve = np.array([2.0, 11.0]), np.array([1.0, 2.0])
    assert epsilon_of_curve(curve, orders, 1e-5, "mironov") == pytest.approx(2 + math.log(1e5) / 10)
    improved = 2 + math.log(10 / 11) - (math.log(1e-5) + math.log(11)) / 10
    assert epsilon_of_curve(curve, orders, 1e-5, "improved") == pytest.approx(improved)
    assert epsilon_of_curve(np.zeros(2), orders, 0.9, "improved") == 0


# Sampling without replacement


def dp_scaffold(sigma: float, users: int, records: int, local: int, rounds: int, server: bool = False) -> float:
    """Epsilon of DP-SCAFFOLD as its authors' script has it, both rates 0.2."""
    whole = np.arange(1, 129)
    orders = np.arange(2, 129)
    steps = whole / (2 * (sigma if server else sigma * math.sqrt(0.2 * users)) ** 2)
    update = local * amplify_without_replacement(steps, 0.2, orders)
    if not server:
        update = np.minimum(amplify_without_replacement(np.concatenate([update[:1], update]), 0.2, orders), update)
    return epsilon_of_curve(rounds * update, orders, 1 / (users * records), "mironov")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ((60, 100, 4000, 5, 100), 6.67), ((60, 100, 4000, 100, 100), 10.22), ((60, 100, 4000, 50, 400), 12.91),
        ((60, 100, 4000, 50, 400, True), 13.79), ((30, 40, 2000, 10, 100), 6.37), ((30, 40, 2000, 50, 400), 11.36),
        ((30, 40, 2000, 100, 400, True), 18.40), ((30, 60, 800, 50, 100), 7.15), ((30, 60, 800, 100, 400), 10.87),
    ],
)  # fmt: skip
def test_dp_scaffold(setting: tuple, expected: float) -> None:
    assert dp_scaffold(*setting) == pytest.approx(expected, abs=1e-2)


def test_the_bound_by_hand() -> None:
    curve = np.array([0.1, 0.2, 0.3])
    second = 3 * 0.3**2 * min(4 * math.expm1(0.2), 2 * math.exp(0.2))
    expected = math.log(1 + second + 2 * 0.3**3 * math.exp(2 * 0.3)) / 2
    assert amplify_without_replacement(curve, 0.3, [3])[0] == pytest.approx(expected, rel=1e-12)


def test_between_integers_the_moment_is_interpolated() -> None:
    curve = np.arange(1, 5) / 8
    at = dict(zip((2, 3), amplify_without_replacement(curve, 0.1, [2, 3]), strict=True))
    assert amplify_without_replacement(curve, 0.1, [1.5])[0] == pytest.approx(0.5 * at[2] / 0.5)
    assert amplify_without_replacement(curve, 0.1, [2.5])[0] == pytest.approx((0.5 * at[2] + 0.5 * 2 * at[3]) / 1.5)


@pytest.mark.parametrize(("sigma", "q", "steps"), [(6.0, 0.01, 10000), (2.0, 0.1, 100), (1.0, 0.05, 50)])
def test_the_bound_lies_above_the_tight_value(sigma: float, q: float, steps: int) -> None:
    bound = make_accountant("rdp").epsilon(GaussianRelease(sigma, q, "without-replacement", "replace", steps), 1e-5)
    tight = make_accountant("pld").epsilon(GaussianRelease(sigma, q, "poisson", "replace", steps), 1e-5)
    assert bound.epsilon >= tight.epsilon
    assert not bound.nominal


def test_the_bound_never_exceeds_no_sampling() -> None:
    sigmas = np.array([0.3, 1.0, 5.0])
    assert np.all(without_replacement(sigmas, 0.9, PAPER_ORDERS) <= gaussian(sigmas, PAPER_ORDERS))
