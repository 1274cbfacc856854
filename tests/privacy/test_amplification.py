"""Sampling any mechanism, and mechanisms made of mechanisms, against closed forms and direct sums."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb

from harness.privacy import GaussianNoise, Repeated, Sampled, TakingPart
from harness.privacy.mechanism import curve_of
from harness.privacy.renyi_curves import amplified, between_integers, poisson


def by_hand(curve: np.ndarray, q: float, order: int, factor: float) -> float:
    """Steinke 2022 (factor 1) and Zhu and Wang 2019, Theorem 5 (factor 3), term by term."""
    total = (1 - q) ** (order - 1) * (1 + (order - 1) * q)
    for j in range(2, order + 1):
        term = comb(order, j) * (1 - q) ** (order - j) * q**j * math.exp((j - 1) * curve[j - 1])
        total += term * (factor if j > 2 else 1)
    return math.log(total) / (order - 1)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sigma=st.floats(0.7, 10), q=st.floats(0.001, 0.9))
def test_steinke_is_exact_for_gaussian_noise(sigma: float, q: float) -> None:
    ours = amplified(curve_of(GaussianNoise(sigma), 40), q, "poisson")
    exact = poisson(np.array([sigma]), q, range(2, 41))[0]
    assert ours[1:] == pytest.approx(exact, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(("rule", "factor"), [("steinke", 1.0), ("zhu-wang", 3.0)])
def test_the_bounds_term_by_term(rule: str, factor: float) -> None:
    curve = np.array([0.1, 0.2, 0.45, 0.7, 1.1])
    ours = amplified(curve, 0.3, "poisson", rule, capped=False)
    assert ours[1:] == pytest.approx([by_hand(curve, 0.3, order, factor) for order in range(2, 6)], rel=1e-12)
    assert ours[0] == ours[1]


def test_zhu_wang_costs_more() -> None:
    curve = curve_of(GaussianNoise(2.0), 30)
    steinke, general = (amplified(curve, 0.1, "poisson", rule) for rule in ("steinke", "zhu-wang"))
    assert np.all(general[2:] > steinke[2:])
    assert general[1] == pytest.approx(steinke[1])


def test_sampling_costs_never_more_than_none() -> None:
    curve = curve_of(GaussianNoise(50.0), 60)
    loose = amplified(curve, 0.5, "without-replacement", capped=False)
    assert np.any(loose > curve)
    assert np.all(amplified(curve, 0.5, "without-replacement")[1:] <= curve[1:])


def test_between_integers_lies_above_the_truth_and_meets_it() -> None:
    curve = curve_of(GaussianNoise(1.0), 12)
    orders = np.linspace(1.1, 11.9, 50)
    assert np.all(between_integers(curve, orders) >= orders / 2 - 1e-12)
    assert between_integers(curve, [2, 7]) == pytest.approx([1.0, 3.5])
    assert between_integers(curve, [1.5]) == pytest.approx([1.0])  # order 2's value: the moment is 0 at order 1


def test_steps_add_up_and_noise_is_inherited() -> None:
    step = Sampled(GaussianNoise(3.0), 0.1, "poisson")
    assert curve_of(Repeated(step, 7), 20) == pytest.approx(7 * curve_of(step, 20))
    assert Repeated(Sampled(GaussianNoise(0.0), 0.5, "poisson"), 3).noiseless
    assert Repeated(step, 2).neighbours == "add/remove"


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_taking_part_is_exact_where_it_is_seen(rate: float) -> None:
    """Who takes part is released beside randomised response; the divergence of the pair by direct summation."""

    class Response(GaussianNoise):
        def divergences(self, highest: int) -> np.ndarray:
            orders = np.arange(2, highest + 1)
            right = np.array([[0.8], [0.2]])
            moments = (right**orders * right[::-1] ** (1 - orders)).sum(axis=0)
            curve = np.log(moments) / (orders - 1)
            return np.concatenate([curve[:1], curve])

    ours = curve_of(TakingPart(Response(1.0), rate), 12)
    for order in (2, 5, 12):
        pairs = [(1 - rate, 1 - rate), (0.8 * rate, 0.2 * rate), (0.2 * rate, 0.8 * rate)]
        direct = math.log(sum(p**order * q ** (1 - order) for p, q in pairs if p)) / (order - 1)
        assert ours[order - 1] == pytest.approx(direct, rel=1e-10)


def test_samples_of_units_are_no_samples_of_owners() -> None:
    """The bound for samples of records, applied to clients, is below the truth where participation shows."""
    response = np.full(40, 3.0)
    applied = amplified(response, 0.01, "poisson")
    truth = math.log1p(0.01 * math.expm1(3.0))  # order 2 of a mechanism that tells who takes part
    assert applied[1] < truth


def test_large_divergences_do_not_overflow() -> None:
    assert np.all(np.isfinite(curve_of(TakingPart(GaussianNoise(0.01), 0.5), 50)))
