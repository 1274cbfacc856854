"""Shamir's secret sharing (Shamir, How to share a secret, 1979) of 32-byte secrets.

The field is that of the prime 2^256 + 297, the smallest one above all 32-byte secrets, so a secret needs no limbs.
"""

import operator
from collections.abc import Iterable, Mapping
from functools import lru_cache

from harness.secagg.entropy import Entropy

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, points: Iterable[int], entropy: Entropy) -> dict[int, bytes]:
    """One share (33 bytes) per point, of which any ``threshold`` give the secret and fewer say nothing about it.

    Args:
        secret: 32 bytes.
        points: distinct positive numbers, the places at which the polynomial is read.
    """
    # 48 bytes modulo the prime: further from uniform by less than 2^-127.
    drawn = entropy(48 * (threshold - 1))
    higher = [int.from_bytes(drawn[start : start + 48], "little") for start in range(0, len(drawn), 48)]
    coefficients = [int.from_bytes(secret, "little"), *(value % PRIME for value in higher)]
    return {point: _evaluate(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret (32 bytes) from exactly ``threshold`` shares by point; None if they belong to no 32-byte secret."""
    weights = _weights_at_zero(tuple(shares))
    values = [int.from_bytes(share, "little") for share in shares.values()]
    secret = sum(map(operator.mul, weights, values)) % PRIME
    return secret.to_bytes(SECRET_BYTES, "little") if secret < 2**256 else None


def _evaluate(coefficients: list[int], point: int) -> int:
    return sum(map(operator.mul, coefficients, _powers(point, len(coefficients)))) % PRIME


@lru_cache(maxsize=4096)
def _powers(point: int, count: int) -> list[int]:
    return [pow(point, exponent, PRIME) for exponent in range(count)]


@lru_cache(maxsize=256)
def _weights_at_zero(points: tuple[int, ...]) -> list[int]:
    """Lagrange's weights of the polynomial's value at zero."""
    weights = []
    for point in points:
        numerator = denominator = 1
        for other in points:
            if other != point:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - point) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights
