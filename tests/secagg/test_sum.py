"""The sum is the plain modular sum, bit for bit, whoever drops out and whatever the graph."""

import numpy as np
import pytest

from harness.secagg import Aggregation, aggregate, open_session, seeded_entropy


def assert_exact(
    clients: int, length: int, bits: int, dropped: float, degree: int | None, threshold: int | None
) -> None:
    """Half of the dropouts leave before masking, half after; the sum must be that of all who masked."""
    numbers = np.random.default_rng([clients, length, bits])
    dtype = np.uint32 if bits <= 32 else np.uint64
    vectors = numbers.integers(0, 2**bits, (clients, length), dtype=dtype, endpoint=False)
    leaving = numbers.permutation(clients)[: int(dropped * clients)].tolist()
    leaves = {client: 2 + turn % 2 for turn, client in enumerate(leaving)}
    result = aggregated(vectors, bits, leaves, degree, threshold)
    assert set(result.survivors) == {client for client in range(clients) if leaves.get(client) != 2}
    modulus = 2**bits
    exact = [sum(column) % modulus for column in vectors[list(result.survivors), :50].T.tolist()]
    assert result.total[:50].tolist() == exact
    plain = vectors[list(result.survivors)].sum(0, dtype=dtype) & dtype(modulus - 1)
    assert result.total.dtype == dtype and np.array_equal(result.total, plain)


def aggregated(
    vectors: np.ndarray, bits: int, leaves: dict[int, int], degree: int | None = None, threshold: int | None = None
) -> Aggregation:
    parties = open_session(*vectors.shape, bits, degree, threshold, entropy=seeded_entropy("setup"))
    return aggregate(parties, vectors, leaves, seed=("test", 0))


@pytest.mark.parametrize(
    ("clients", "length", "bits", "dropped", "degree", "threshold"),
    [
        (2, 100_000, 32, 0.0, None, None),
        (5, 1000, 32, 0.0, None, None),
        (5, 1000, 20, 0.4, None, 3),
        (10, 100_000, 32, 0.4, None, 6),
        (10, 1, 64, 0.2, None, None),
        (10, 1000, 1, 0.3, None, 6),
        pytest.param(51, 1000, 33, 0.4, None, 26, marks=pytest.mark.slow),
        (51, 100, 32, 0.1, 12, 6),
        pytest.param(200, 1000, 32, 0.1, 32, 15, marks=pytest.mark.slow),
    ],
)
def test_the_sum_is_exact(
    clients: int, length: int, bits: int, dropped: float, degree: int | None, threshold: int | None
) -> None:
    assert_exact(clients, length, bits, dropped, degree, threshold)


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "threshold"), [(None, 101), (64, 20)])
@pytest.mark.parametrize(("length", "dropped"), [(1000, 0.0), (100_000, 0.4)])
def test_the_sum_is_exact_for_two_hundred_clients(
    length: int, dropped: float, degree: int | None, threshold: int
) -> None:
    assert_exact(200, length, 32, dropped, degree, threshold)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_client_may_leave_at_any_time(stage: int) -> None:
    vectors = np.arange(60, dtype=np.uint32).reshape(6, 10)
    result = aggregated(vectors, 32, {4: stage})
    counted = range(6) if stage == 3 else [0, 1, 2, 3, 5]
    assert result.survivors == tuple(counted)
    assert np.array_equal(result.total, vectors[list(counted)].sum(0, dtype=np.uint32))


def test_a_seed_repeats_everything_and_without_one_masks_are_fresh() -> None:
    vectors = np.ones((3, 8), dtype=np.uint32)
    one, same = aggregated(vectors, 32, {}), aggregated(vectors, 32, {})
    assert all(np.array_equal(one.masked[client], same.masked[client]) for client in range(3))
    parties = open_session(3, 8)
    first, second = aggregate(parties, vectors), aggregate(parties, vectors)
    assert not np.array_equal(first.masked[0], second.masked[0])
    assert np.array_equal(first.total, second.total)
