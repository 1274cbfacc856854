"""Random numbers keyed by what they are for, so that no result depends on batching, chunking or resuming.

Noise and sampling come from ChaCha20 (RFC 8439) under the 256 bits of SHA-256 of the key. They are mapped to numbers by
:mod:`harness.vectors.quantiles`, in exactly rounded operations only, so every machine makes the same ones.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from harness.vectors.quantiles import Fill, normals, tail_logarithm

Key = tuple[int | str, ...]
_BLOCK = 1 << 16
_ZEROS = memoryview(bytes(_BLOCK))


def digest(*key: int | str) -> bytes:
    """The 256 bits that stand for ``key`` (for example seed, purpose, victim, round, step)."""
    return hashlib.sha256("\x1f".join(f"{type(part).__name__}:{part}" for part in key).encode()).digest()


def derive_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of ``key``: for what is public, as orders and weights, never for noise."""
    return int.from_bytes(digest(*key)[:8], "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator for public orders; torch keeps 32 bits of its seed, so noise must not come from it."""
    return torch.Generator().manual_seed(derive_seed(*key))


class Stream:
    """Random numbers of one key, drawn one after the other on the CPU, so that every device sees the same."""

    def __init__(self, *key: int | str) -> None:
        self._key = digest(*key)
        self._words = self._keystream(0)

    @cached_property
    def _tails(self) -> Fill:
        return self._keystream(1)

    def _keystream(self, number: int) -> Fill:
        """Fills arrays with the next bytes of the key's stream of this number."""
        nonce = bytes(8) + number.to_bytes(8, "little")
        cipher = Cipher(algorithms.ChaCha20(self._key, nonce), None).encryptor()

        def fill(words: np.ndarray) -> None:
            view = words.view(np.uint8).data
            for start in range(0, len(view), _BLOCK):
                part = view[start : start + _BLOCK]
                cipher.update_into(_ZEROS[: len(part)], part)

        return fill

    def words(self, count: int) -> np.ndarray:
        """Uniform integers of 64 bits."""
        drawn = np.empty(count, dtype="<u8")
        self._words(drawn)
        return drawn

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Multiples of 2^-53 in [0, 1), as float64."""
        drawn = (self.words(math.prod(shape)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return torch.from_numpy(drawn).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers, as float32."""
        drawn = normals(math.prod(shape), self._words, lambda rare: self._tails(rare))
        return torch.from_numpy(drawn).reshape(tuple(shape))

    def laplace(self, shape: Sequence[int]) -> Tensor:
        """Laplace numbers of scale 1 (standard deviation sqrt 2), as float32."""
        words = self.words(math.prod(shape))
        sizes = -tail_logarithm(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
        signed = np.where((words & np.uint64(1)).astype(bool), sizes, -sizes).astype(np.float32)
        return torch.from_numpy(signed).reshape(tuple(shape))

    def permutation(self, count: int) -> Tensor:
        """The numbers below ``count`` in random order; orders differ in probability by less than count^2 / 2^64."""
        return torch.from_numpy(np.argsort(self.words(count), kind="stable"))

    def choices(self, count: int, below: int) -> Tensor:
        """``count`` numbers from 0 to ``below`` - 1, each as probable as the others but for ``below`` / 2^53."""
        return (self.uniform((count,)) * below).long().clamp(max=below - 1)


def poisson_sample(shape: tuple[int, ...], rate: float, random: Stream) -> Tensor:
    """Booleans of a shape: who takes part, each with probability ``rate`` in [0, 1], or less by at most 2^-53.

    Uniform numbers are multiples of 2^-53; below the rate itself would lie one more of them than the accounted rate
    allows.
    """
    return random.uniform(shape) < math.floor(rate * 2**53) / 2**53


def normal_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal noise (R, *shape) with one independent stream per row, on the device and dtype of ``like``."""
    rows = [Stream(*key).normal(shape) for key in keys]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)


def laplace_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Laplace noise of scale 1 (standard deviation sqrt 2) in the form of :func:`normal_rows`."""
    rows = [Stream(*key).laplace(shape) for key in keys]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)


def uniform_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2^-53 whatever the dtype of ``like``, otherwise as normal_rows."""
    return torch.stack([Stream(*key).uniform(shape) for key in keys]).to(device=like.device)
