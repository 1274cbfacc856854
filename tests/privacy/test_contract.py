"""What every accountant must keep to; one subclass per accountant and convention."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.privacy import ACCOUNTANTS, Accountant, GaussianRelease, NoEvent, NonPrivate, compose, make_accountant
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


def release(sigma: float = 4.0, q: float = 0.02, count: int = 100) -> GaussianRelease:
    return GaussianRelease(sigma, q, "poisson", count=count)


class AccountantContract:
    """Inherit and name the accountant."""

    accountant: Accountant

    def epsilon(self, *events, delta: float = DELTA) -> float:
        return self.accountant.epsilon(compose(events), delta).epsilon

    @examples
    @given(sigma=sigmas, q=rates, count=steps, factor=st.floats(1.1, 3))
    def test_more_noise_costs_less(self, sigma: float, q: float, count: int, factor: float) -> None:
        assert self.epsilon(release(sigma * factor, q, count)) < self.epsilon(release(sigma, q, count))

    @examples
    @given(sigma=sigmas, q=rates, count=steps, factor=st.floats(1.1, 3))
    def test_a_higher_rate_costs_more(self, sigma: float, q: float, count: int, factor: float) -> None:
        assert self.epsilon(release(sigma, q * factor, count)) > self.epsilon(release(sigma, q, count))

    @examples
    @given(sigma=sigmas, q=rates, count=steps, more=st.integers(20, 300))
    def test_more_steps_cost_more(self, sigma: float, q: float, count: int, more: int) -> None:
        assert self.epsilon(release(sigma, q, count + more)) > self.epsilon(release(sigma, q, count))

    @examples
    @given(sigma=sigmas, q=rates, count=steps, factor=st.floats(1.5, 1000))
    def test_a_larger_delta_costs_less(self, sigma: float, q: float, count: int, factor: float) -> None:
        event = release(sigma, q, count)
        assert self.epsilon(event, delta=DELTA * factor) < self.epsilon(event, delta=DELTA)

    def test_repeating_is_composing(self) -> None:
        once = self.epsilon(release(count=40))
        assert self.epsilon(*[release(count=1)] * 40) == pytest.approx(once, rel=1e-9)
        assert self.epsilon(release(count=15), release(count=25)) == pytest.approx(once, rel=1e-9)

    def test_order_does_not_matter(self) -> None:
        parts = [release(3.0, 0.02, 20), release(6.0, 0.05, 7), GaussianRelease(30.0, count=2)]
        assert self.epsilon(*parts) == pytest.approx(self.epsilon(*reversed(parts)), rel=1e-12)

    def test_every_part_costs(self) -> None:
        assert self.epsilon(release(), release(3.0)) > max(self.epsilon(release()), self.epsilon(release(3.0)))

    def test_nothing_costs_nothing(self) -> None:
        assert self.epsilon(NoEvent()) == self.epsilon() == self.epsilon(release(count=0)) == 0
        assert self.epsilon(release(), NoEvent()) == self.epsilon(release())

    def test_no_noise_is_infinite(self) -> None:
        assert self.epsilon(release(sigma=0.0)) == math.inf
        assert self.epsilon(release(), NonPrivate()) == math.inf
        assert self.accountant.delta(NonPrivate(), 1.0) == 1

    def test_a_rate_of_one_hides_nobody(self) -> None:
        assert self.epsilon(release(q=1.0)) == pytest.approx(self.epsilon(GaussianRelease(4.0, count=100)), rel=1e-12)

    def test_sampling_never_hurts(self) -> None:
        assert self.epsilon(release(q=0.999)) <= self.epsilon(release(q=1.0)) * (1 + 1e-3)

    def test_unknown_events_are_refused(self) -> None:
        @dataclass(frozen=True)
        class Laplace:
            scale: float = 1.0

        with pytest.raises(UsageError, match="no accountant knows"):
            self.epsilon(Laplace())

    @pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
    def test_delta_has_a_range(self, delta: float) -> None:
        with pytest.raises(UsageError, match="delta must lie in"):
            self.epsilon(release(), delta=delta)

    def test_adjacencies_do_not_mix(self) -> None:
        with pytest.raises(UsageError, match="adjacencies"):
            self.epsilon(release(), GaussianRelease(4.0, adjacency="replace"))

    def test_delta_inverts_epsilon(self) -> None:
        epsilon = self.epsilon(release())
        assert self.accountant.delta(release(), epsilon) == pytest.approx(DELTA, rel=1e-2)

    def test_spending_is_the_running_epsilon(self) -> None:
        rounds = [compose([release(3.0 + number, count=5)]) for number in range(4)]
        after = self.accountant.spending(rounds, DELTA)
        assert after(0) == 0
        for count in range(1, 5):
            assert after(count) == pytest.approx(self.epsilon(*rounds[:count]), rel=1e-9)
        assert self.accountant.spending([release(), NonPrivate()], DELTA)(2) == math.inf

    def test_the_result_names_its_conventions(self) -> None:
        found = self.accountant.epsilon(release(), DELTA)
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


class TestPrivacyLoss(AccountantContract):
    accountant = make_accountant("pld")


def test_every_accountant_is_under_contract() -> None:
    assert {kind.accountant.name for kind in AccountantContract.__subclasses__()} == set(ACCOUNTANTS)


@pytest.mark.parametrize(
    ("name", "options"),
    [("rdp", {"conversion_rule": "old"}), ("rdp", {"orders": "few"}), ("advanced", {"formula": "x"}), ("rpd", {})],
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
