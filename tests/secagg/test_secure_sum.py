"""From real vectors to their noisy secure sum: right, calibrated, and refused where it would be neither."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.secagg import Aborted, numbers
from harness.secagg.simulate import Aggregation, Key, SumSettings, build_mechanism, sum_integers, sum_reals

CLIENTS, DIMENSION = 10, 2000
WAYS = [
    ("skellam", "strict_grid"), ("skellam", "paper"), ("gaussian", "paper"),
    ("poisson_binomial", "strict_grid"), ("poisson_binomial", "paper"),
]  # fmt: skip


def vectors() -> np.ndarray:
    rows = numbers("vectors").standard_normal((CLIENTS, DIMENSION))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@dataclass(frozen=True)
class SecureSum:
    """A noisy sum and what lay where on the way.

    Attributes:
        total: (p,), the decoded sum over the survivors.
        sent: (N, p), what each client put under its masks, decoded: the client's own, weaker protection.
        deviation: standard deviation, at most, of the noise in a coordinate of ``total``.
        aggregation: what the server holds: masked vectors, survivors, the sum in the ring, and the costs.
    """

    total: np.ndarray
    sent: np.ndarray
    deviation: float
    aggregation: Aggregation


def secure_sum(
    vectors: np.ndarray,
    settings: SumSettings,
    key: Key,
    leaves: Mapping[int, int] | None = None,
    largest: float | None = None,
) -> SecureSum:
    """The sum of the clients' vectors, each clipped, with noise calibrated for the fewest reliable clients.

    Args:
        vectors: (N, p), finite.
        key: makes noise and masks repeatable, for example (seed, round).
        leaves: client -> the protocol's stage (0 to 3) from which on it is silent.
        largest: ``paper``: bound of a coordinate of what a client sends; None allows ten deviations beyond the clip.

    Raises:
        UsageError: impossible settings, or the sum overflows the ring.
        Aborted: more clients dropped out than the noise is calibrated for.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise UsageError("a secure sum takes one vector of finite numbers per client, (N, p)")
    clients, dimension = vectors.shape
    mechanism = build_mechanism(settings, clients, dimension, key)
    streams = [numbers("mechanism", *key, client) for client in range(clients)]
    noisy = np.stack([mechanism.encode(vectors[[client]], stream) for client, stream in enumerate(streams)])
    sent = mechanism.decode(noisy)
    if settings.mode == "strict_grid":
        integers, aggregation = sum_integers(noisy, settings, key, leaves)
        total = mechanism.decode(integers)
    else:
        largest = settings.clip + 10 * mechanism.deviation if largest is None else largest
        total, aggregation = sum_reals(sent, largest, settings, key, leaves)
    return SecureSum(total, sent, mechanism.deviation * math.sqrt(len(aggregation.survivors)), aggregation)


@pytest.mark.parametrize(("mechanism", "mode"), WAYS)
@pytest.mark.parametrize("leaves", [{}, {3: 2, 5: 3}])
def test_the_sum_is_that_of_the_survivors_with_the_noise_it_says(
    mechanism: str, mode: str, leaves: dict[int, int]
) -> None:
    settings = SumSettings(noise=0.5, mechanism=mechanism, mode=mode, dropouts=2)
    result = secure_sum(vectors(), settings, (0, mechanism), leaves)
    counted = [client for client in range(CLIENTS) if leaves.get(client) != 2]
    assert result.aggregation.survivors == tuple(counted)
    error = result.total - vectors()[counted].sum(axis=0)
    assert error.std() == pytest.approx(result.deviation, rel=0.06)
    # The sum is that of what the clients sent, to the rounding of the ring.
    assert np.abs(result.total - result.sent[counted].sum(axis=0)).max() < CLIENTS / 2 / 2**19


@pytest.mark.parametrize(("mechanism", "mode"), WAYS[:3])
@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (2, 0), (2, 3)])
def test_noise_is_calibrated_for_the_fewest_reliable_clients(
    mechanism: str, mode: str, colluders: int, dropouts: int
) -> None:
    settings = SumSettings(2.0, 0.5, mechanism, mode, colluders=colluders, dropouts=dropouts)
    leaves = dict.fromkeys(range(dropouts), 2)
    result = secure_sum(np.zeros((CLIENTS, DIMENSION)), settings, (1,), leaves)
    honest = result.sent[dropouts : CLIENTS - colluders].sum(axis=0)
    assert honest.std() == pytest.approx(0.5 * 2.0, rel=0.06)
    assert result.sent[0].std() == pytest.approx(1.0 / np.sqrt(CLIENTS - colluders - dropouts), rel=0.06)


def test_without_noise_the_sum_is_exact_to_the_rounding() -> None:
    for mechanism, mode in WAYS[:3]:
        result = secure_sum(vectors(), SumSettings(noise=0.0, mechanism=mechanism, mode=mode), (2,), largest=1.0)
        assert np.abs(result.total - vectors().sum(axis=0)).max() < CLIENTS / 2**20


def test_a_key_repeats_the_sum_and_another_does_not() -> None:
    one, same, other = (secure_sum(vectors(), SumSettings(), key) for key in ((3, 0), (3, 0), (3, 1)))
    assert np.array_equal(one.total, same.total) and not np.array_equal(one.total, other.total)
    assert all(np.array_equal(one.aggregation.masked[c], same.aggregation.masked[c]) for c in range(CLIENTS))


def test_more_dropouts_than_the_noise_is_calibrated_for_abort() -> None:
    with pytest.raises(Aborted, match="8 of 10 clients are left, 9 are needed"):
        secure_sum(vectors(), SumSettings(dropouts=1), (4,), {0: 2, 1: 2})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mechanism": "gaussian"}, "lies on no grid"),
        ({"mechanism": "laplace"}, "choose a mechanism"),
        ({"mode": "loose"}, "choose a mechanism"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"noise": -1.0}, "noise zero or more"),
        ({"colluders": 6, "dropouts": 4}, "nobody's noise is left"),
        ({"colluders": 5, "dropouts": 4, "threshold": 4}, "colluders hold enough shares"),
        ({"dropouts": 5}, "6 of 10 clients must stay to bind a server .* protocol=semi_honest"),
        ({"colluders": 2, "dropouts": 4}, "7 of 10 clients must stay"),
        ({"colluders": 3, "dropouts": 2, "degree": 4}, "may cut a graph of 4 neighbours"),
        ({"protocol": "none"}, "choose the protocol"),
        ({"mechanism": "poisson_binomial", "bits": 8}, "raise bits"),
        ({"bits": 3, "noise": 3.0}, "raise bits"),
    ],
)
def test_impossible_sums_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        secure_sum(vectors(), SumSettings(**settings), (5,))


def test_a_coordinate_beyond_its_bound_is_refused() -> None:
    with pytest.raises(UsageError, match="beyond its bound"):
        secure_sum(vectors(), SumSettings(mode="paper"), (5,), largest=0.01)


def test_who_trusts_the_server_may_lose_half_of_the_clients() -> None:
    leaves = dict.fromkeys(range(5), 2)
    result = secure_sum(vectors(), SumSettings(noise=0.0, dropouts=5, protocol="semi_honest"), (9,), leaves)
    assert np.abs(result.total - vectors()[5:].sum(axis=0)).max() < CLIENTS / 2**20


@pytest.mark.parametrize("bad", [np.ones(5), np.array([[1.0, np.nan], [0.0, 1.0]])])
def test_vectors_that_are_none_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(UsageError, match="one vector of finite numbers per client"):
        secure_sum(bad, SumSettings(), (6,))


def test_a_sum_that_overflows_is_refused() -> None:
    with pytest.raises(UsageError, match="overflows the ring of 32 bits"):
        secure_sum(vectors(), SumSettings(deviations=3.0), (7,))
    secure_sum(vectors(), SumSettings(deviations=7.0), (7,))


def test_several_steps_add_up_in_the_ring() -> None:
    settings, steps = SumSettings(noise=0.5, dropouts=1), 5
    grid = build_mechanism(settings, CLIENTS, DIMENSION, (8,), rows=3, steps=steps)
    batches = np.stack([vectors()[:3]] * CLIENTS)
    streams = [numbers("steps", client) for client in range(CLIENTS)]
    sums = np.stack(
        [sum(grid.encode(batch, stream) for _ in range(steps)) for batch, stream in zip(batches, streams, strict=True)]
    )
    integers, _ = sum_integers(sums, settings, (8,), {1: 3})
    error = grid.decode(integers) - steps * batches.sum(axis=(0, 1))
    noise = 0.5 * np.sqrt(steps * CLIENTS / (CLIENTS - 1))
    assert error.std() == pytest.approx(noise, rel=0.06)
