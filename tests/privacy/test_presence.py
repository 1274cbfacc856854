"""How well presence is told: against a package of others, against tests that are carried out, and at its ends."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from riskcal.analysis import get_beta_from_gdp, get_beta_from_pld
from scipy.stats import norm
from threadpoolctl import ThreadpoolController

from harness.base.presence import FALSE_ALARMS, lax, told_apart
from harness.privacy import GaussianRelease, MechanismRelease, SkellamSum, make_accountant, make_statement
from harness.privacy.events import compose
from harness.privacy.presence import presence, told_by
from harness.privacy.views import valid_accountants


def _drawn(count: int) -> list[tuple[float, float, int]]:
    """(sigma, rate, steps) at random, of losses that distributions resolve: below sigma .75 ours widens its buckets."""
    draw, found = np.random.default_rng(44), []
    while len(found) < count:
        sigma, rate = (float(np.exp(draw.uniform(*np.log(ends)))) for ends in ((0.75, 8), (1e-3, 0.5)))
        steps = int(np.exp(draw.uniform(0, math.log(2000))))
        rate = 1.0 if len(found) % 5 == 0 else rate
        if math.sqrt(steps) * rate / sigma < 3:
            found.append((sigma, rate, steps))
    return found


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [one if at < 3 else pytest.param(*one, marks=pytest.mark.slow) for at, one in enumerate(_drawn(50))],
)
def test_it_agrees_with_riskcal(sigma: float, rate: float, steps: int) -> None:
    sampler = "poisson" if rate < 1 else "none"
    release = GaussianRelease(sigma, rate, sampler, count=steps)
    mu, told = presence(release, valid_accountants(release))
    if rate == 1:
        theirs = get_beta_from_gdp(math.sqrt(steps) / sigma, FALSE_ALARMS)
        assert mu == pytest.approx(math.sqrt(steps) / sigma)
    else:
        losses = privacy_loss_distribution.from_gaussian_mechanism(
            sigma, sampling_prob=rate, value_discretization_interval=1e-4
        )
        theirs = get_beta_from_pld(losses.self_compose(steps), FALSE_ALARMS)
        assert mu is None
    assert told == pytest.approx(1 - float(theirs), abs=1e-4)


def test_the_best_test_on_a_sampled_gaussian_reaches_it_and_none_exceeds_it() -> None:
    """Likelihood ratios of one sampled release: the power is a sum over a grid, no accountant asked."""
    sigma, rate = 0.6, 0.3
    release = GaussianRelease(sigma, rate, "poisson")
    noise = np.linspace(-8, 9, 400_001)
    absent = norm.pdf(noise, scale=sigma)
    present = (1 - rate) * absent + rate * norm.pdf(noise, loc=1, scale=sigma)
    step = noise[1] - noise[0]

    def power(null: np.ndarray, other: np.ndarray) -> float:
        order = np.argsort(-other / null)
        alarms = np.cumsum(null[order]) * step
        return float(np.interp(FALSE_ALARMS, alarms, np.cumsum(other[order]) * step))

    best = max(power(absent, present), power(present, absent))
    told = told_by(make_accountant("pld"), release)
    assert best - 1e-4 <= told <= best + 2e-3  # neighbours in both directions share one curve, which is symmetric
    assert told < told_by(make_accountant("rdp"), release)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 1.0),
        ({"epsilon": 0.0}, FALSE_ALARMS),
        ({"epsilon": 0.0, "delta": 0.1}, FALSE_ALARMS + 0.1),
        ({"epsilon": math.log(3)}, 3 * FALSE_ALARMS),
        ({"epsilon": 50.0}, 1.0),
        ({"mu": 0.0}, FALSE_ALARMS),
        ({"mu": 1.0}, 1 - norm.cdf(norm.ppf(1 - FALSE_ALARMS) - 1)),
    ],
)
def test_of_a_single_number(given: dict[str, float], told: float) -> None:
    assert told_apart(FALSE_ALARMS, **given) == pytest.approx(told)


def test_other_laws_have_a_number_and_what_nothing_protects_has_none() -> None:
    integers = MechanismRelease(SkellamSum(variance=400.0, scale=1.0, l2=4.0, l1=50.0))
    stated = make_statement("server", "client-LDP", "integers", actual=integers, unit="client")
    gaussian = told_apart(FALSE_ALARMS, mu=4 / 20)
    assert stated.mu is None and stated.told_apart is not None and gaussian < stated.told_apart < 3 * gaussian
    nothing = make_statement("server", "none", "no noise")
    assert nothing.told_apart is None and nothing.mu is None


@pytest.mark.parametrize(
    ("delta", "units", "careless"), [(1e-5, 99_999, False), (1e-5, 100_000, True), (0.2, None, False), (None, 9, False)]
)
def test_a_delta_of_one_over_the_units_is_said(delta: float | None, units: int | None, careless: bool) -> None:
    assert (lax(delta, "client", units) is not None) == careless


def test_numbers_do_not_depend_on_how_many_threads_numpy_takes() -> None:
    """A card that was made with one thread is confirmed byte by byte where there are more."""
    event = compose([GaussianRelease(6 / 6**0.5, 0.01, "poisson", count=10_000)])
    found = set()
    for threads in (1, 2, 4):
        with ThreadpoolController().limit(limits=threads, user_api="blas"):
            made = [make_accountant(name) for name in ("pld", "rdp")]
            found.add(tuple((told_by(one, event), one.epsilon(event, 1e-5).epsilon) for one in made))
    assert len(found) == 1
