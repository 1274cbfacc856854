"""Which releases each view sees (specification: accounting, section 8)."""

import math

import pytest

from harness.errors import UsageError
from harness.privacy import (
    Event,
    Federation,
    GaussianRelease,
    NonPrivate,
    View,
    client_views,
    effective_sigma,
    example_views,
    make_accountant,
    sum_multiplier,
)
from harness.privacy.events import ledger

NUMBERS = {"clients": 100, "clients_per_round": 25, "rounds": 8}


def events(views: list[View]) -> dict[str, Event]:
    return {view.name: view.event for view in views}


def only(event: Event) -> GaussianRelease:
    (release,) = ledger(event).releases
    return release


def seen(release: GaussianRelease) -> tuple:
    return pytest.approx(release.sigma), release.q, release.sampler, release.count


def test_noise_on_the_sum_at_the_server() -> None:
    found = events(client_views(Federation(6.0, layers=4, **NUMBERS)))
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
    found = events(client_views(Federation(6.0, **NUMBERS), noise_at, split))
    assert only(found["third party"]).sigma == pytest.approx(third_party)
    assert only(found["client"]).sigma == pytest.approx(client)
    if server is None:
        assert isinstance(found["server"], NonPrivate)
    else:
        # Locally private: any two updates of a client, 2 C apart.
        assert seen(only(found["server"])) == (server / 2, 1.0, "none", 8)
        assert only(found["server"]).adjacency == "replace" and only(found["client"]).adjacency == "add/remove"


def test_one_local_step_is_hidden_by_everybodys_noise() -> None:
    found = events(example_views(Federation(6.0, layers=9, steps=1, rate=0.01, **NUMBERS)))
    assert seen(only(found["server"])) == (2.0, 0.01, "poisson", 8)
    assert seen(only(found["third party"])) == (10.0, 0.01, "poisson", 8)
    assert only(found["client"]).sigma == pytest.approx(2 * math.sqrt(24))


def test_several_local_steps_are_hidden_by_the_clients_own_noise_only() -> None:
    """Later gradients depend on the client's own model; see ``test_where_the_theorem_ends`` for what goes wrong."""
    found = events(example_views(Federation(6.0, layers=9, steps=10, rate=0.01, **NUMBERS)))
    assert all(seen(only(event)) == (2.0, 0.01, "poisson", 80) for event in found.values())


def test_noise_that_may_not_be_there_does_not_count() -> None:
    """With Poisson-sampled clients a round may have the one client only."""
    loose = Federation(6.0, steps=1, rate=0.01, steady=False, **NUMBERS)
    examples, clients = events(example_views(loose)), events(client_views(loose, "client"))
    assert examples["third party"] == examples["server"] == examples["client"]
    assert clients["third party"] == clients["client"] and only(clients["client"]).sigma == pytest.approx(6)
    assert only(events(client_views(loose, "receive", "share"))["third party"]).sigma == pytest.approx(6 / 5)
    # Noise on the sum at the server is there whoever comes.
    steady = Federation(6.0, steps=1, rate=0.01, **NUMBERS)
    assert events(client_views(loose)) == events(client_views(steady))


def test_one_client_alone_is_the_plain_accountant() -> None:
    found = events(example_views(Federation(6.0, rounds=2, steps=3, rate=0.1)))
    assert {only(event) for event in found.values()} == {GaussianRelease(6.0, 0.1, "poisson", count=6)}


def test_a_fixed_partition_is_not_amplified() -> None:
    found = events(example_views(Federation(6.0, rounds=100, steps=100, rate=0.01, sampler="none")))
    assert seen(only(found["server"])) == (6.0, 1.0, "none", 100)
    assert make_accountant("pld").epsilon(found["server"], 1e-5).epsilon == pytest.approx(8.0, abs=5e-3)


def test_a_fixed_partition_is_charged_the_least_noisy_steps() -> None:
    federation = Federation([5.0, 3.0, 4.0, 9.0, 8.0, 7.0], rounds=2, steps=3, rate=2 / 3, sampler="none")
    releases = ledger(events(example_views(federation))["server"]).releases
    assert [release.sigma for release in releases] == [3, 4, 7, 8]


def test_schedules_per_round_and_per_step() -> None:
    by_round = Federation([4.0, 2.0], rounds=2, steps=3, rate=0.5)
    by_step = Federation([4.0] * 3 + [2.0] * 3, rounds=2, steps=3, rate=0.5)
    assert events(example_views(by_round)) == events(example_views(by_step))
    assert [release.sigma for release in ledger(events(client_views(by_round))["third party"]).releases] == [2, 4]
    with pytest.raises(UsageError, match="give one per round or step"):
        example_views(Federation([1.0] * 4, rounds=2, steps=3))


def test_more_clients_than_there_are() -> None:
    with pytest.raises(UsageError, match="lower clients_per_round"):
        Federation(1.0, rounds=1, clients=5, clients_per_round=6)


def test_everybody_every_round_is_no_sampling() -> None:
    found = events(client_views(Federation(6.0, rounds=3, clients=4, clients_per_round=4)))
    assert seen(only(found["third party"])) == (6.0, 1.0, "none", 3)


def test_fixed_size_sampling_needs_replace_one() -> None:
    federation = Federation(6.0, sampler="without-replacement", adjacency="replace", **NUMBERS)
    assert seen(only(events(client_views(federation))["third party"])) == (3.0, 0.25, "without-replacement", 8)
    with pytest.raises(UsageError, match="replace"):
        client_views(Federation(6.0, sampler="without-replacement", **NUMBERS))


def test_multipliers() -> None:
    assert effective_sigma(6, 9, "replace") == 1
    assert [sum_multiplier(2, name, 16) for name in ("sum", "per_example", "mean")] == [2, 8, 32]
    with pytest.raises(UsageError, match="layers"):
        effective_sigma(6, 0)
