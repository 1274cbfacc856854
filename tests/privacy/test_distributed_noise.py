"""Sum-dominating composition: the paper's figures, its relaxations, and where its theorem ends."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from harness.base.errors import UsageError
from harness.privacy import GaussianRelease, make_accountant
from harness.privacy.distributed_noise import SEVERAL_STEPS, DistributedNoise, Party, fused, sum_sigma
from harness.privacy.events import ledger
from harness.privacy.rdp import Renyi
from harness.secagg import SkellamGrid

ACCOUNTANT = Renyi("mironov", tuple(range(2, 256)))
PARTY = Party(noise=0.5, rate=0.1, steps=4)


def epsilon(event: object) -> float:
    return ACCOUNTANT.epsilon(event, 1e-5).epsilon


def test_one_client_is_the_plain_accountant() -> None:
    alone = DistributedNoise((PARTY,), rounds=3)
    plain = epsilon(GaussianRelease(0.5, 0.1, "poisson", count=12))
    assert epsilon(alone.sum_event()) == epsilon(alone.fallback_event()) == pytest.approx(plain)


@pytest.mark.parametrize("clients", [2, 10, 51])
def test_equal_clients_add_their_variances(clients: int) -> None:
    together = DistributedNoise((PARTY,) * clients, rounds=3)
    (release,) = ledger(together.sum_event()).releases
    assert (release.sigma, release.q, release.count) == (pytest.approx(0.5 * math.sqrt(clients)), 0.1, 12)
    (own,) = ledger(together.fallback_event()).releases
    assert (own.sigma, own.count) == (0.5, 12)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=8), factor=st.floats(0.01, 100))
def test_a_common_learning_rate_changes_nothing(weights: list[float], factor: float) -> None:
    before = [Party(0.7, weight=weight) for weight in weights]
    after = [replace(party, weight=factor * party.weight) for party in before]
    assert sum_sigma(before) == pytest.approx(sum_sigma(after))
    closed = 0.7 * math.sqrt(sum(weight**2 for weight in weights)) / max(weights)
    assert sum_sigma(before) == pytest.approx(closed)


def test_only_the_largest_bound_counts() -> None:
    parties = [Party(1.0, clip=2.0), Party(1.0, clip=1.0), Party(1.0, clip=1.0)]
    halved = [parties[0], replace(parties[1], clip=0.5), parties[2]]
    assert sum_sigma(halved) == sum_sigma(parties) == pytest.approx(math.sqrt(3) / 2)
    assert sum_sigma([replace(parties[0], clip=1.0), *parties[1:]]) == pytest.approx(math.sqrt(3))


def test_missing_noise() -> None:
    assert sum_sigma([Party(1.0)] * 10, missing=3) == pytest.approx(math.sqrt(7))
    noisy = [Party(5.0), Party(1.0), Party(1.0)]
    assert sum_sigma(noisy, missing=1) == pytest.approx(math.sqrt(2))  # the noisiest one of the others is missing
    assert sum_sigma(noisy, missing=1) < math.sqrt(5**2 + 1)
    assert epsilon(DistributedNoise((PARTY,) * 5, 1, missing=2).sum_event()) > epsilon(
        DistributedNoise((PARTY,) * 5, 1).sum_event()
    )


def test_fused_steps() -> None:
    short, long = Party(1.0, steps=2, rate=0.1), Party(1.0, steps=5, rate=0.1)
    first, second = fused([short, long])
    assert first == short
    assert (second.steps, second.clip, second.noise) == (2, 3.0, 1.0)
    assert second.rate == pytest.approx(1 - 0.9**3)
    (release,) = ledger(DistributedNoise((short, long), 1, relaxed=True).sum_event()).releases
    assert (release.sigma, release.q, release.count) == (pytest.approx(math.sqrt(2) / 3), second.rate, 2)
    assert fused([replace(short, rate=1.0), replace(long, rate=1.0)])[1].rate == 1


def test_the_largest_rate_counts() -> None:
    parties = (Party(1.0, rate=0.1), Party(1.0, rate=0.3))
    (release,) = ledger(DistributedNoise(parties, 1, relaxed=True).sum_event()).releases
    assert release.q == 0.3


def test_noise_on_the_whole_update_costs_more() -> None:
    """Noise only on the update after L steps has sensitivity L C, and a record is nearly always in it."""
    steps, q, sigma = 8, 0.1, 1.0
    ours = epsilon(DistributedNoise((Party(sigma, rate=q, steps=steps),) * 4, 10).sum_event())
    naive = GaussianRelease(2 * sigma * math.sqrt(steps) / steps, 1 - (1 - q) ** steps, "poisson", count=10)
    assert epsilon(naive) > ours * 1.2


def test_skellam_noise_on_a_grid() -> None:
    grid = SkellamGrid(1000, 2.0, 0.5, 10)
    parties = (Party(1.0, clip=2.0, rate=0.1, steps=4),) * 10
    fine, same = DistributedNoise(parties, 3, grid=grid), DistributedNoise(parties, 3)
    assert epsilon(fine.sum_event()) == pytest.approx(epsilon(same.sum_event()), rel=1e-6)
    assert epsilon(fine.fallback_event()) == pytest.approx(epsilon(same.fallback_event()), rel=1e-6)
    with pytest.raises(UsageError, match="make it for those"):
        DistributedNoise(parties, 3, grid=replace(grid, clients=9))
    with pytest.raises(UsageError, match="equal noise"):
        DistributedNoise((*parties[1:], replace(parties[0], weight=2.0)), 3, grid=grid)


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"disjoint": False}, "give every record to one client"), ({"missing": 2}, "at least one must remain"),
        ({"parties": (PARTY, replace(PARTY, steps=5))}, "relaxed=True"),
        ({"parties": (PARTY, replace(PARTY, rate=0.2))}, "relaxed=True"), ({"parties": ()}, "at least one"),
    ],
)  # fmt: skip
def test_conditions_are_refused(wrong: dict, fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        DistributedNoise(**({"parties": (PARTY, PARTY), "rounds": 1} | wrong))


@pytest.mark.parametrize(
    "wrong", [{"noise": -1.0}, {"clip": 0.0}, {"steps": 0}, {"rate": 0.0}, {"rate": 1.1}, {"weight": math.inf}]
)
def test_impossible_clients(wrong: dict) -> None:
    with pytest.raises(UsageError):
        Party(**({"noise": 1.0} | wrong))


def test_where_the_theorem_ends() -> None:
    """Two local steps break the paper's figure, so it is marked; one does not.

    The record moves the first step's sum by C. In the second step a thousand other records of the same client all push
    towards the sign of its own noisy model. A hundred clients' noise cannot hide a thousand: the sign is seen. So the
    first step is protected by the client's own noise alone (multiplier 1), not by all clients' (10).
    """
    parties = (Party(1.0, steps=2),) * 100
    federation = DistributedNoise(parties, 1)
    seen = norm.cdf(1.0) - norm.cdf(0.0)  # how much more often the sign is positive with the record
    blurred = 2 * norm.cdf(-1000 / math.sqrt(100))  # how often the noise of the second step turns it over
    assert make_accountant("pld").delta(federation.sum_event(), 0.0) < 0.06 < seen - blurred
    assert make_accountant("pld").delta(federation.fallback_event(), 0.0) > seen
    assert federation.notes == (SEVERAL_STEPS,)
    assert DistributedNoise((Party(1.0),) * 100, 1).notes == ()
