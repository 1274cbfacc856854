"""Any t shares give the secret, fewer say nothing."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.secagg import seeded_entropy
from harness.secagg.primitives import PRIME, combine, split


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 5), st.integers(0, 3))
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, spare: int) -> None:
    shares = split(secret, threshold, range(1, threshold + spare + 1), seeded_entropy("shamir"))
    for chosen in itertools.combinations(shares, threshold):
        assert combine({point: shares[point] for point in chosen}) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """With t-1 shares fixed, each candidate secret has exactly one polynomial: the shares exclude none."""
    shares = split(bytes(32), 3, (1, 2, 3), seeded_entropy("few"))
    assert combine({1: shares[1], 2: shares[2]}) != bytes(32)
    # Moving the third share moves the secret one to one, by Lagrange's weight of the third point.
    third = int.from_bytes(shares[3], "little")
    moved = {point: combine({**shares, 3: ((third + point) % PRIME).to_bytes(33, "little")}) for point in range(1, 9)}
    assert len(set(moved.values())) == 8


def test_the_prime_is_prime() -> None:
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))
    assert PRIME > 2**256
