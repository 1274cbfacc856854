"""Which releases each view sees (docs/accounting.md, "Views")."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from harness.base.errors import UsageError
from harness.privacy import (
    Event,
    FederationFacts,
    GaussianRelease,
    MechanismRelease,
    NonPrivate,
    Repeated,
    TakingPart,
    View,
    client_views,
    compose,
    effective_sigma,
    example_views,
    make_accountant,
    sum_multiplier,
    valid_epsilon,
)
from harness.privacy.events import ledger
from harness.privacy.mechanism import gaussian_step
from harness.privacy.pld import gaussian_delta, gaussian_epsilon

NUMBERS = {"clients": 100, "clients_per_round": 25, "rounds": 8}


def events(views: list[View]) -> dict[str, Event]:
    return {view.name: view.event for view in views}


def only(event: Event) -> GaussianRelease:
    (release,) = ledger(event).releases
    return release


def seen(release: GaussianRelease) -> tuple:
    return pytest.approx(release.sigma), release.q, release.sampler, release.count


def test_noise_on_the_sum_at_the_server() -> None:
    found = events(client_views(FederationFacts(6.0, layers=4, **NUMBERS)))
    assert seen(only(found["third party"])) == seen(only(found["client"])) == (3.0, 0.25, "poisson", 8)
    assert isinstance(found["server"], NonPrivate)


@pytest.mark.parametrize(
    ("noise_at", "split", "third_party", "client", "server"),
    [
        ("receive", "full", 6 * 5, 6 * 5, None),
        ("receive", "share", 6, 6, None),
        ("client", "full", 6 * 5, 6 * math.sqrt(24), 6),
        ("client", "share", 6, 6 * math.sqrt(24 / 25), 6 / 5),
    ],
)
def test_noise_elsewhere(noise_at: str, split: str, third_party: float, client: float, server: float | None) -> None:
    found = events(client_views(FederationFacts(6.0, client_sampler="without-replacement", **NUMBERS), noise_at, split))
    assert only(found["third party"]).sigma == pytest.approx(third_party / 2)
    assert only(found["client"]).sigma == pytest.approx(client / 2)
    if server is None:
        assert isinstance(found["server"], NonPrivate)
    else:
        # Locally private: any two updates of a client, 2 C apart.
        assert seen(only(found["server"])) == (server / 2, 1.0, "none", 8)
    assert all(only(event).adjacency == "replace" for name, event in found.items() if server or name != "server")


@pytest.mark.parametrize("noise_at", ["receive", "client"])
@pytest.mark.parametrize("sampler", ["none", "poisson", "without-replacement"])
def test_noise_that_comes_with_a_message_is_stated_for_replacing_its_client(noise_at: str, sampler: str) -> None:
    """One that is absent would take its noise with it; a sum of fewer noises is told from one of more.

    With 10 clients, sigma 6 on each and 10^6 coordinates, add/remove would take an epsilon above 100 at delta 1e-5.
    """
    everybody = FederationFacts(6.0, rounds=1, clients=10, clients_per_round=10, client_sampler=sampler)
    for view in client_views(everybody, noise_at):
        if not isinstance(view.event, NonPrivate):
            assert only(view.event).adjacency == "replace"
            assert "replac" in view.note or view.name == "server"


def test_absent_noise_is_noticed() -> None:
    """Why add/remove is no option: the squared norm of the sum tells nine noises from ten, and no epsilon holds."""
    coordinates, expected = 10**6, 10.0
    deviation = expected * math.sqrt(2 / coordinates)
    threshold = expected - 0.5  # half way to nine
    all_ten, nine = ((threshold - mean) / deviation * (mean / expected) ** -1 for mean in (expected, 9.0))
    missed = log_ndtr(all_ten)  # ten noises taken for nine
    assert math.exp(log_ndtr(-nine)) < 1e-5  # nine taken for ten
    assert math.log(1 - 2e-5) - missed > 100  # of P(nine said | nine) > 1 - delta against P(nine said | ten)


def test_a_client_that_sat_out_knows_the_rate_of_the_others() -> None:
    def rates(clients: int, count: int, sampler: str = "without-replacement") -> list[float]:
        run = FederationFacts(6.0, 1, 1, clients, count, client_sampler=sampler, adjacency="replace")
        return [only(events(client_views(run))[name]).q for name in ("third party", "client")]

    assert rates(2, 1) == [0.5, 1.0] and rates(10, 4) == [0.4, 4 / 9] and rates(3, 3) == [1.0, 1.0]
    assert rates(10, 4, "poisson") == [0.4, 0.4] and rates(1, 1, "none") == [1.0, 1.0]
    two = FederationFacts(6.0, 1, 1, 2, 1, client_sampler="without-replacement", adjacency="replace")
    third_party, client = (valid_epsilon(events(client_views(two))[name])[0] for name in ("third party", "client"))
    # Of two, one sits out half of the time and then sees the other alone.
    exact = gaussian_epsilon(1 / 3, 2e-5)
    assert third_party < exact == pytest.approx(1.2136, abs=1e-4) and exact < client < 1.3


def test_what_clients_keep_voids_the_amplification_by_samples_of_fixed_size() -> None:
    run = FederationFacts(6.0, client_sampler="without-replacement", adjacency="replace", own_state=True, **NUMBERS)
    for name, event in events(client_views(run)).items():
        assert name == "server" or seen(only(event)) == (3.0, 1.0, "none", 8)
    poisson = events(client_views(FederationFacts(6.0, own_state=True, **NUMBERS)))
    assert seen(only(poisson["third party"])) == (6.0, 0.25, "poisson", 8)


def taking_part(sigma: float, q: float, steps: int, share: float, rounds: int = 8) -> Event:
    step = gaussian_step(sigma, q, "poisson")
    return compose([MechanismRelease(TakingPart(Repeated(step, steps), share), count=rounds)])


def test_one_local_step_is_hidden_by_everybodys_noise() -> None:
    steady = FederationFacts(6.0, layers=9, steps=1, rate=0.01, client_sampler="without-replacement", **NUMBERS)
    found = events(example_views(steady))
    assert seen(only(found["server"])) == (2.0, 0.01, "poisson", 8)
    assert found["third party"] == taking_part(10.0, 0.01, 1, 0.25)
    assert found["client"] == taking_part(2 * math.sqrt(24), 0.01, 1, 25 / 99)


def test_several_local_steps_are_hidden_by_the_clients_own_noise_only() -> None:
    """Later gradients depend on the client's own model; see ``test_where_the_theorem_ends`` for what goes wrong."""
    found = events(example_views(FederationFacts(6.0, layers=9, steps=10, rate=0.01, **NUMBERS)))
    assert seen(only(found["server"])) == (2.0, 0.01, "poisson", 80)
    assert found["third party"] == found["client"] == taking_part(2.0, 0.01, 10, 0.25)


def test_who_is_not_told_who_takes_part_learns_less() -> None:
    found = events(example_views(FederationFacts(6.0, layers=9, steps=10, rate=0.01, **NUMBERS)))
    third_party, server = (valid_epsilon(found[name])[0] for name in ("third party", "server"))
    assert 0 < third_party < 0.7 * server
    everybody = events(example_views(FederationFacts(6.0, steps=10, rate=0.01, client_sampler="none", **NUMBERS)))
    assert everybody["third party"] == everybody["server"]
    shared = events(example_views(FederationFacts(6.0, steps=10, rate=0.01, holders=2, **NUMBERS)))
    assert shared["third party"] == shared["server"]
    # Three of eight hold it, and one of them takes part at a time.
    one_of = FederationFacts(6.0, 8, clients=8, clients_per_round=1, rate=0.01, client_sampler="none", holders=3)
    assert [
        events(example_views(replace(one_of, client_sampler="without-replacement")))[name]
        for name in ("third party", "client")
    ] == [taking_part(6.0, 0.01, 1, share) for share in (3 * (1 / 8), 3 * (1 / 7))]


def test_noise_that_may_not_be_there_does_not_count() -> None:
    """With Poisson-sampled clients a round may have the one client only."""
    loose = FederationFacts(6.0, steps=1, rate=0.01, **NUMBERS)
    examples, clients = events(example_views(loose)), events(client_views(loose, "client"))
    assert examples["third party"] == examples["client"] == taking_part(6.0, 0.01, 1, 0.25)
    assert clients["third party"] == clients["client"] and only(clients["client"]).sigma == pytest.approx(3)
    assert only(events(client_views(loose, "receive", "share"))["third party"]).sigma == pytest.approx(3 / 5)
    # Noise on the sum at the server is there whoever comes.
    assert seen(only(events(client_views(loose))["third party"])) == (6.0, 0.25, "poisson", 8)


def test_what_is_no_weighted_sum_is_hidden_by_own_noise_alone() -> None:
    """Adam's first step is about a sign. Of five clients four send +1 in most rounds, which hides nothing."""
    steady = FederationFacts(2.0, 1, clients=5, clients_per_round=5, client_sampler="none", adjacency="replace")
    uneven = replace(steady, uneven="an optimizer of its own")
    others = binom.pmf(range(5), 4, ndtr(4 / 2))  # four examples at the bound each, noise of twice the bound
    there, absent = (np.convolve(others, [1 - up, up]) for up in (ndtr(1 / 2), 0.5))
    shown = np.maximum(there - absent, 0).sum()
    summed, alone = (
        gaussian_delta(1 / (2 * only(events(example_views(facts))["third party"]).sigma), 0.0)
        for facts in (steady, uneven)
    )  # for adding one: half of replacing
    assert summed == pytest.approx(0.089, abs=1e-3) and alone == pytest.approx(0.197, abs=1e-3)
    assert summed < 0.17 < shown < alone
    assert [view.event for view in example_views(uneven)][::2] == [example_views(steady)[1].event] * 2
    for place in ("client", "receive"):
        assert only(events(client_views(uneven, place))["third party"]).sigma == 1.0
    assert only(events(client_views(uneven))["third party"]).sigma == 1.0  # the server's own noise on the sum


def test_one_client_alone_is_the_plain_accountant() -> None:
    found = events(example_views(FederationFacts(6.0, rounds=2, steps=3, rate=0.1)))
    assert {only(event) for event in found.values()} == {GaussianRelease(6.0, 0.1, "poisson", count=6)}


def test_a_fixed_partition_is_not_amplified() -> None:
    found = events(example_views(FederationFacts(6.0, rounds=100, steps=100, rate=0.01, example_sampler="none")))
    assert seen(only(found["server"])) == (6.0, 1.0, "none", 100)
    assert make_accountant("pld").epsilon(found["server"], 1e-5).epsilon == pytest.approx(8.0, abs=5e-3)


def test_a_fixed_partition_is_charged_the_least_noisy_steps() -> None:
    federation = FederationFacts([5.0, 3.0, 4.0, 9.0, 8.0, 7.0], rounds=2, steps=3, rate=2 / 3, example_sampler="none")
    releases = ledger(events(example_views(federation))["server"]).releases
    assert [release.sigma for release in releases] == [3, 4, 7, 8]


def test_schedules_per_round_and_per_step() -> None:
    by_round = FederationFacts([4.0, 2.0], rounds=2, steps=3, rate=0.5)
    by_step = FederationFacts([4.0] * 3 + [2.0] * 3, rounds=2, steps=3, rate=0.5)
    assert events(example_views(by_round)) == events(example_views(by_step))
    assert [release.sigma for release in ledger(events(client_views(by_round))["third party"]).releases] == [2, 4]
    with pytest.raises(UsageError, match="give one per round or step"):
        example_views(FederationFacts([1.0] * 4, rounds=2, steps=3))


def test_more_clients_than_there_are() -> None:
    with pytest.raises(UsageError, match="lower clients_per_round"):
        FederationFacts(1.0, rounds=1, clients=5, clients_per_round=6)


def test_everybody_every_round_is_no_sampling() -> None:
    found = events(client_views(FederationFacts(6.0, rounds=3, clients=4, clients_per_round=4)))
    assert seen(only(found["third party"])) == (6.0, 1.0, "none", 3)


def test_fixed_size_sampling_needs_replace_one() -> None:
    federation = FederationFacts(6.0, client_sampler="without-replacement", adjacency="replace", **NUMBERS)
    assert seen(only(events(client_views(federation))["third party"])) == (3.0, 0.25, "without-replacement", 8)
    with pytest.raises(UsageError, match="replace"):
        client_views(FederationFacts(6.0, client_sampler="without-replacement", **NUMBERS))


def test_multipliers() -> None:
    assert effective_sigma(6, 9, "replace") == 1
    assert [sum_multiplier(2, name, 16) for name in ("sum", "per_example", "mean")] == [2, 8, 32]
    with pytest.raises(UsageError, match="layers"):
        effective_sigma(6, 0)
