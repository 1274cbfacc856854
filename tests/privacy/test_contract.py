"""What every accountant must keep to; one subclass per accountant and convention."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.base.errors import UsageError
from harness.privacy import (
    ACCOUNTANTS,
    Accountant,
    Event,
    GaussianNoise,
    GaussianRelease,
    MechanismRelease,
    NoEvent,
    NonPrivate,
    PoissonBinomialSum,
    Repeated,
    Sampled,
    SkellamSum,
    TakingPart,
    compose,
    make_accountant,
)
from harness.privacy.rdp import Renyi

DELTA = 1e-5

sigmas = st.floats(2, 8)
rates = st.floats(0.005, 0.1)
steps = st.integers(1, 200)
# The same test body runs for every subclass, so Hypothesis must keep no memory of it.
examples = settings(
    max_examples=8, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.differing_executors],
)  # fmt: skip


def gaussian(sigma: float = 4.0, q: float = 0.02, count: int = 100) -> Event:
    return GaussianRelease(sigma, q, "poisson", count=count)


def skellam(sigma: float = 4.0, q: float = 0.02, count: int = 100) -> Event:
    return MechanismRelease(SkellamSum(sigma**2, 200.0, 1.0, 8.0), q, "poisson", count=count)


def nested(sigma: float = 4.0, q: float = 0.02, count: int = 100) -> Event:
    """Two steps on samples of a half, by clients of whom a half take part."""
    steps = Repeated(Sampled(GaussianNoise(2 * sigma), 0.5, "poisson"), 2)
    return MechanismRelease(TakingPart(steps, 0.5), q, "poisson", count=count)


def poisson_binomial(sigma: float = 4.0, q: float = 0.02, count: int = 100) -> Event:
    """As many contributors as make noise of about sigma; none where sigma is 0."""
    if sigma == 0:
        return NonPrivate()
    return MechanismRelease(PoissonBinomialSum(math.ceil(8 * sigma**2), 1, 0.25), q, "poisson", count=count)


class AccountantContract:
    """Inherit and name the accountant, and the release if it is not Gaussian."""

    accountant: Accountant
    release = staticmethod(gaussian)

    def epsilon(self, *events, delta: float = DELTA) -> float:
        return self.accountant.epsilon(compose(events), delta).epsilon

    @examples
    @given(sigma=sigmas, q=rates, count=steps, factor=st.floats(1.1, 3))
    def test_more_noise_costs_less(self, sigma: float, q: float, count: int, factor: float) -> None:
        assert self.epsilon(self.release(sigma * factor, q, count)) < self.epsilon(self.release(sigma, q, count))

    @examples
    @given(sigma=sigmas, q=rates, count=steps, factor=st.floats(1.1, 3))
    def test_a_higher_rate_costs_more(self, sigma: float, q: float, count: int, factor: float) -> None:
        assert self.epsilon(self.release(sigma, q * factor, count)) > self.epsilon(self.release(sigma, q, count))

    @examples
    @given(sigma=sigmas, q=rates, count=steps, more=st.integers(20, 300))
    def test_more_steps_cost_more(self, sigma: float, q: float, count: int, more: int) -> None:
        assert self.epsilon(self.release(sigma, q, count + more)) > self.epsilon(self.release(sigma, q, count))

    @examples
    @given(sigma=sigmas, q=rates, count=steps, factor=st.floats(1.5, 1000))
    def test_a_larger_delta_costs_less(self, sigma: float, q: float, count: int, factor: float) -> None:
        event = self.release(sigma, q, count)
        assert self.epsilon(event, delta=DELTA * factor) < self.epsilon(event, delta=DELTA)

    def test_repeating_is_composing(self) -> None:
        once = self.epsilon(self.release(count=40))
        assert self.epsilon(*[self.release(count=1)] * 40) == pytest.approx(once, rel=1e-9)
        assert self.epsilon(self.release(count=15), self.release(count=25)) == pytest.approx(once, rel=1e-9)

    def test_order_does_not_matter(self) -> None:
        parts = [self.release(3.0, 0.02, 20), self.release(6.0, 0.05, 7), GaussianRelease(30.0, count=2)]
        assert self.epsilon(*parts) == pytest.approx(self.epsilon(*reversed(parts)), rel=1e-12)

    def test_every_part_costs(self) -> None:
        assert self.epsilon(self.release(), self.release(3.0)) > max(
            self.epsilon(self.release()), self.epsilon(self.release(3.0))
        )

    def test_nothing_costs_nothing(self) -> None:
        assert self.epsilon(NoEvent()) == self.epsilon() == self.epsilon(self.release(count=0)) == 0
        assert self.epsilon(self.release(), NoEvent()) == self.epsilon(self.release())

    def test_no_noise_is_infinite(self) -> None:
        assert self.epsilon(self.release(sigma=0.0)) == math.inf
        assert self.epsilon(self.release(), NonPrivate()) == math.inf
        assert self.accountant.delta(NonPrivate(), 1.0) == 1

    def test_a_rate_of_one_hides_nobody(self) -> None:
        everybody = replace(self.release(q=1.0), sampler="none")
        assert self.epsilon(self.release(q=1.0)) == pytest.approx(self.epsilon(everybody), rel=1e-12)

    def test_sampling_never_hurts(self) -> None:
        assert self.epsilon(self.release(q=0.999)) <= self.epsilon(self.release(q=1.0)) * (1 + 1e-3)

    def test_unknown_events_are_refused(self) -> None:
        @dataclass(frozen=True)
        class Laplace:
            scale: float = 1.0

        with pytest.raises(UsageError, match="no accountant knows"):
            self.epsilon(Laplace())

    @pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
    def test_delta_has_a_range(self, delta: float) -> None:
        with pytest.raises(UsageError, match="delta must lie in"):
            self.epsilon(self.release(), delta=delta)

    def test_adjacencies_do_not_mix(self) -> None:
        with pytest.raises(UsageError, match="adjacencies"):
            self.epsilon(self.release(), GaussianRelease(4.0, adjacency="replace"))

    def test_delta_inverts_epsilon(self) -> None:
        epsilon = self.epsilon(self.release())
        assert self.accountant.delta(self.release(), epsilon) == pytest.approx(DELTA, rel=1e-2)

    def test_spending_is_the_running_epsilon(self) -> None:
        rounds = [compose([self.release(3.0 + number, count=5)]) for number in range(4)]
        after = self.accountant.spending(rounds, DELTA)
        assert after(0) == 0
        for count in range(1, 5):
            assert after(count) == pytest.approx(self.epsilon(*rounds[:count]), rel=1e-9)
        assert self.accountant.spending([self.release(), NonPrivate()], DELTA)(2) == math.inf

    def test_the_result_names_its_conventions(self) -> None:
        found = self.accountant.epsilon(self.release(), DELTA)
        assert (found.accountant, found.sampler, found.adjacency) == (self.accountant.name, "poisson", "add/remove")
        assert found.delta == DELTA <= found.delta_total
        assert found.conversion


class TestBase(AccountantContract):
    accountant = make_accountant("base")


class TestAdvanced(AccountantContract):
    accountant = make_accountant("advanced")


class TestAdvancedKairouz(AccountantContract):
    accountant = make_accountant("advanced", formula="kov")


class TestAdvancedOptimal(AccountantContract):
    accountant = make_accountant("advanced", formula="optimal")


class TestZeroConcentrated(AccountantContract):
    accountant = make_accountant("zcdp")


class TestRenyiImproved(AccountantContract):
    accountant = make_accountant("rdp", orders=tuple(range(2, 64)))


class TestRenyiMironovPaperOrders(AccountantContract):
    accountant = Renyi("mironov", "paper", grid=None)


class TestSkellam(AccountantContract):
    accountant = make_accountant("rdp", orders=tuple(range(2, 64)))
    release = staticmethod(skellam)


class TestSkellamZhuWang(AccountantContract):
    accountant = make_accountant("rdp", orders=tuple(range(2, 64)), amplification="zhu-wang")
    release = staticmethod(skellam)


class TestMechanismOfMechanisms(AccountantContract):
    accountant = make_accountant("rdp", orders=tuple(range(2, 64)))
    release = staticmethod(nested)


class TestPoissonBinomial(AccountantContract):
    accountant = make_accountant("rdp", orders=tuple(range(2, 64)))
    release = staticmethod(poisson_binomial)


class TestPrivacyLoss(AccountantContract):
    accountant = make_accountant("pld")


def test_every_accountant_is_under_contract() -> None:
    assert {kind.accountant.name for kind in AccountantContract.__subclasses__()} == set(ACCOUNTANTS)


@pytest.mark.parametrize("name", ["base", "advanced", "zcdp", "pld"])
@pytest.mark.parametrize("release", [skellam, nested, poisson_binomial])
def test_only_renyi_curves_know_every_mechanism(name: str, release: Callable[[], Event]) -> None:
    for question in (
        lambda accountant: accountant.epsilon(release(), DELTA),
        lambda accountant: accountant.delta(release(), 1.0),
        lambda accountant: accountant.spending([release()], DELTA)(1),
    ):
        with pytest.raises(UsageError, match="choose --accountant rdp"):
            question(make_accountant(name))


def test_a_mechanism_keeps_its_own_neighbours() -> None:
    with pytest.raises(UsageError, match="replace adjacency"):
        MechanismRelease(PoissonBinomialSum(5, 4, 0.1, adjacency="replace"), 0.5, "poisson")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rdp", {"conversion_rule": "old"}),
        ("rdp", {"orders": "few"}),
        ("rdp", {"amplification": "x"}),
        ("advanced", {"formula": "x"}),
        ("rpd", {}),
    ],
)
def test_unknown_conventions_are_refused(name: str, options: dict) -> None:
    with pytest.raises(UsageError, match=r"choose|did you mean"):
        make_accountant(name, **options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sigma": -1.0}, {"sigma": math.nan}, {"q": 0.0, "sampler": "poisson"}, {"q": 1.5, "sampler": "poisson"},
        {"q": 0.5}, {"sampler": "fixed"}, {"adjacency": "zero"}, {"count": -1},
        {"q": 0.5, "sampler": "without-replacement"},
    ],
)  # fmt: skip
def test_impossible_releases_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError):
        GaussianRelease(**({"sigma": 1.0} | wrong))
