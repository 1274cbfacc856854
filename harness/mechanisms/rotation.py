"""The randomised Hadamard rotation: spreads a vector evenly over its coordinates, so that all need the same range."""

import math

import numpy as np

from harness.mechanisms.streams import numbers


def padded(dimension: int) -> int:
    """The next power of two, the length of a rotated vector."""
    return 1 << (dimension - 1).bit_length()


def random_signs(dimension: int, *key: int | str) -> np.ndarray:
    """The signs (padded dimension,), +1 or -1, that all clients and the server share."""
    return 1.0 - 2.0 * numbers("rotation", *key).integers(0, 2, padded(dimension))


def rotate(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Rows (..., p) padded with zeros, with random signs, in the Hadamard basis (..., d); norms stay."""
    spare = [(0, 0)] * (rows.ndim - 1) + [(0, signs.size - rows.shape[-1])]
    return hadamard(np.pad(rows, spare) * signs)


def unrotate(rows: np.ndarray, signs: np.ndarray, dimension: int) -> np.ndarray:
    """The inverse of :func:`rotate`: rows (..., d) back to (..., p)."""
    return (hadamard(rows) * signs)[..., :dimension]


def hadamard(rows: np.ndarray) -> np.ndarray:
    """The orthonormal Walsh-Hadamard transform over the last axis, a power of two long; it is its own inverse."""
    size = rows.shape[-1]
    values = rows.astype(np.float64).reshape(-1, size)
    half = 1
    while half < size:
        pairs = values.reshape(-1, size // (2 * half), 2, half)
        values = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return values.reshape(rows.shape) / math.sqrt(size)
