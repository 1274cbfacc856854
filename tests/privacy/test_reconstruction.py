"""Ceilings on reconstruction: printed values, independent formulas, and the attacker that reaches them."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from harness.privacy import GaussianNoise, GaussianRelease, skellam_sum
from harness.privacy.reconstruction import GaussianLimit, Limit, PureLimit, RenyiLimit, RunLimit
from harness.secagg import SkellamGrid

LAYERS = math.sqrt(10) / 6  # LeNet's ten tensors, sigma 6
WHOLE = GaussianLimit(1 / 6)
SECURE_SUM = skellam_sum(SkellamGrid(4096, 4.0, 1.4 / math.sqrt(10), 10))
RUN = RunLimit(GaussianRelease(1 / LAYERS, 0.01, "poisson", count=10_000))

# Ceilings at kappa = 0.1 and 0.01.
PRINTED: dict[str, tuple[Limit, float, float]] = {
    "fed_cdp, per tensor": (GaussianLimit(LAYERS), 0.225, 0.036),
    "fed_cdp, whole": (WHOLE, 0.132, 0.015),
    "four looks": (GaussianLimit(LAYERS).repeated(4), 0.410, 0.102),
    "sixteen looks": (GaussianLimit(LAYERS).repeated(16), 0.796, 0.414),
    "sixty-four looks": (GaussianLimit(LAYERS).repeated(64), 0.998, 0.971),
    "fed_sdp, a share of ten clients": (GaussianLimit(LAYERS * math.sqrt(10)), 0.650, 0.255),
    "dp_local, sigma 60": (GaussianLimit(1 / 120), 0.102, 0.010),
    "secure sum as if Gaussian": (GaussianLimit(1 / 1.4), 0.285, 0.054),
    "secure sum": (RenyiLimit(SECURE_SUM), 0.359, 0.068),
    "whole run": (RUN, 0.237, 0.039),
}  # fmt: skip


@pytest.mark.parametrize(("limit", "tenth", "hundredth"), PRINTED.values(), ids=PRINTED)
def test_printed_values(limit: Limit, tenth: float, hundredth: float) -> None:
    assert limit.ceiling(0.1) == pytest.approx(tenth, abs=6e-4)
    assert limit.ceiling(0.01) == pytest.approx(hundredth, abs=6e-4)


LIMITS: dict[str, Limit] = {
    "gaussian": GaussianLimit(0.527), "renyi": RenyiLimit(GaussianNoise(2.0)), "pure": PureLimit(1.0),
    "run": RunLimit(GaussianRelease(2.0, 0.1, "poisson", count=20)),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_ceiling_is_a_probability_that_grows_with_the_blind_one_and_with_looks(limit: Limit) -> None:
    values = [limit.ceiling(kappa) for kappa in (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)]
    assert values == sorted(values) and values[0] < 1e-3 and values[-1] == 1
    assert all(0.01 < limit.ceiling(0.01) < limit.repeated(times).ceiling(0.01) <= 1 for times in (2, 9))
    with pytest.raises(ValueError, match="blind probability"):
        limit.ceiling(1.5)


def test_other_forms_are_never_below_the_exact_one() -> None:
    exact, renyi = GaussianLimit(0.5), RenyiLimit(GaussianNoise(2.0))
    run = RunLimit(GaussianRelease(2.0))
    for kappa in (0.001, 0.1, 0.4, 0.8):
        assert exact.ceiling(kappa) <= renyi.ceiling(kappa)
        # The lower envelope of all lines above a concave curve is the curve itself.
        assert exact.ceiling(kappa) - 1e-6 <= run.ceiling(kappa) == pytest.approx(exact.ceiling(kappa), abs=1e-3)


def test_randomised_response_reaches_the_pure_form() -> None:
    epsilon, candidates = 1.5, 4
    # The truth with e^epsilon times the chance of each other candidate, against a uniform reference.
    truth = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    factor = truth * candidates  # over the reference, the truth's chance; the others' is smaller by e^-epsilon
    assert PureLimit(math.log(factor)).ceiling(1 / candidates) == pytest.approx(truth)
    assert PureLimit(1.0).ceiling(0.9) == pytest.approx(1 - math.exp(-1) * 0.1)


def test_an_observed_step_comes_on_top_of_a_run() -> None:
    alone = RunLimit(GaussianRelease(2.0, count=3))
    assert alone.beside(GaussianLimit(0.5)).ceiling(0.1) == pytest.approx(GaussianLimit(1.0).ceiling(0.1), abs=1e-3)
    replaced = RunLimit(GaussianRelease(2.0, 0.1, "without-replacement", "replace"))
    assert replaced.beside(GaussianLimit(0.5)).ceiling(0.1) > GaussianLimit(0.5).ceiling(0.1)


@pytest.mark.parametrize(("candidates", "optimal"), [(2, 0.701), (10, 0.213), (100, 0.034)])
def test_the_optimal_identifier_comes_within_two_points_and_never_above(candidates: int, optimal: float) -> None:
    """Candidates at equal distances from each other, mu from their centre, on a linear model with Gaussian noise."""
    mu, trials = LAYERS, 200_000
    random = np.random.default_rng(0)
    corners = np.eye(candidates) - 1 / candidates
    corners *= mu / np.linalg.norm(corners[0])
    hits = 0
    for _ in range(20):
        seen = corners[0] + random.standard_normal((trials // 20, candidates))
        hits += int((np.argmax(seen @ corners.T, axis=1) == 0).sum())
    rate, ceiling = hits / trials, GaussianLimit(mu).ceiling(1 / candidates)
    error = 4 * math.sqrt(rate * (1 - rate) / trials)
    assert rate == pytest.approx(optimal, abs=1e-3 + error)
    assert ceiling - 0.02 < rate < ceiling + error
    if candidates == 2:
        assert rate == pytest.approx(norm.cdf(mu), abs=error) and ceiling == pytest.approx(norm.cdf(mu))
