"""The randomised Hadamard rotation: spreads a vector evenly over its coordinates, so that all need the same range."""

import math

import numpy as np

from harness.secagg.streams import numbers


def padded(dimension: int) -> int:
    """The next power of two, the length of a rotated vector."""
    return 1 << (dimension - 1).bit_length()


def random_signs(dimension: int, *key: int | str) -> np.ndarray:
    """The signs (padded dimension,), +1 or -1, that all clients and the server share."""
    return 1.0 - 2.0 * numbers("rotation", *key).integers(0, 2, padded(dimension))


def rotate(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Rows (..., p) padded with zeros, with random signs, in the Hadamard basis (..., d); norms stay."""
    dimension = rows.shape[-1]
    longer = np.zeros((*rows.shape[:-1], signs.size))
    longer[..., :dimension] = rows * signs[:dimension]
    return hadamard(longer)


def unrotate(rows: np.ndarray, signs: np.ndarray, dimension: int) -> np.ndarray:
    """The inverse of :func:`rotate`: rows (..., d) back to (..., p)."""
    return (hadamard(rows) * signs)[..., :dimension]


def hadamard(rows: np.ndarray) -> np.ndarray:
    """The orthonormal Walsh-Hadamard transform over the last axis, a power of two long; it is its own inverse.

    Each pass puts the sums of neighbours in the first half and their differences in the second (Pease, 1968), so all
    passes are alike and read long runs; only additions, so no row depends on how many there are.
    """
    size = rows.shape[-1]
    half = size // 2
    values = rows.astype(np.float64).reshape(-1, size)
    other = np.empty_like(values)
    for _ in range(size.bit_length() - 1):
        np.add(values[:, 0::2], values[:, 1::2], out=other[:, :half])
        np.subtract(values[:, 0::2], values[:, 1::2], out=other[:, half:])
        values, other = other, values
    return values.reshape(rows.shape) / math.sqrt(size)
