"""Random numbers keyed by what they are for, so that no result depends on batching, chunking or resuming.

Noise and sampling come from ChaCha20 (RFC 8439) under the 256 bits of SHA-256 of the key. They are mapped to numbers in
exactly rounded operations only, so every machine makes the same ones.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from harness.base.device_noise import laplace_rows_on, normal_rows_on, uniform_rows_on
from harness.base.normals import CHUNK, Fill, normals, tail_logarithm

Key = tuple[int | str, ...]
_BLOCK = 1 << 16
_ZEROS = memoryview(bytes(_BLOCK))
_ALL = 1 << 62  # more bytes than anybody draws


def digest(*key: int | str) -> bytes:
    """The 256 bits that stand for ``key`` (for example seed, purpose, victim, round, step)."""
    return hashlib.sha256("\x1f".join([f"{type(part).__name__}:{part}" for part in key]).encode()).digest()


def derive_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of ``key``: for what is public, as orders and weights, never for noise."""
    return int.from_bytes(digest(*key)[:8], "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator for public orders; torch keeps 32 bits of its seed, so noise must not come from it."""
    return torch.Generator().manual_seed(derive_seed(*key))


class Stream:
    """Random numbers of one key, drawn one after the other on the CPU, so that every device sees the same."""

    def __init__(self, *key: int | str) -> None:
        self._keys = [digest(*key)]
        self._words = _in_turn(self._keys)

    @cached_property
    def _tails(self) -> Fill:
        return _in_turn(self._keys, number=1)

    def words(self, count: int) -> np.ndarray:
        """Uniform integers of 64 bits."""
        return _drawn(self._words, count)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Multiples of 2^-53 in [0, 1), as float64."""
        return torch.from_numpy(_uniform(self.words(math.prod(shape)))).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers, as float32."""
        drawn = np.empty(math.prod(shape), dtype=np.float32)
        normals(drawn, self._words, lambda places: _drawn(self._tails, len(places)))
        return torch.from_numpy(drawn).reshape(tuple(shape))

    def laplace(self, shape: Sequence[int]) -> Tensor:
        """Laplace numbers of scale 1 (standard deviation sqrt 2), as float32."""
        return torch.from_numpy(_laplace(self.words(math.prod(shape)))).reshape(tuple(shape))

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
    count, digests = math.prod(shape), [digest(*key) for key in keys]
    if like.is_cuda:
        return normal_rows_on(digests, count, like.device).reshape(len(keys), *shape).to(like.dtype)
    drawn = np.empty(len(keys) * count, dtype=np.float32)

    def finer(places: np.ndarray) -> np.ndarray:
        rows = Counter((places // count).tolist())
        return np.concatenate([_drawn(_in_turn([digests[row]], number=1), many) for row, many in rows.items()])

    normals(drawn, _in_turn(digests, 4 * count), finer)
    return torch.from_numpy(drawn).reshape(len(keys), *shape).to(device=like.device, dtype=like.dtype)


def laplace_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Laplace noise of scale 1 (standard deviation sqrt 2) in the form of :func:`normal_rows`."""
    if like.is_cuda:
        drawn = laplace_rows_on([digest(*key) for key in keys], math.prod(shape), like.device)
        return drawn.reshape(len(keys), *shape).to(like.dtype)
    return _mapped_rows(keys, shape, _laplace, np.float32).to(device=like.device, dtype=like.dtype)


def uniform_rows(keys: list[Key], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2^-53 whatever the dtype of ``like``, otherwise as normal_rows."""
    if like.is_cuda:
        drawn = uniform_rows_on([digest(*key) for key in keys], math.prod(shape), like.device)
        return drawn.reshape(len(keys), *shape)
    return _mapped_rows(keys, shape, _uniform, np.float64).to(device=like.device)


def _mapped_rows(
    keys: list[Key], shape: tuple[int, ...], mapped: Callable[[np.ndarray], np.ndarray], dtype: type[np.floating]
) -> Tensor:
    """Rows (R, *shape) of what a map makes of each word of 64 bits."""
    count = math.prod(shape)
    drawn, fill = np.empty(len(keys) * count, dtype), _in_turn([digest(*key) for key in keys], 8 * count)
    words = np.empty(min(len(drawn), CHUNK), dtype="<u8")
    for start in range(0, len(drawn), CHUNK):
        out = drawn[start : start + CHUNK]
        fill(words[: len(out)])
        out[:] = mapped(words[: len(out)])
    return torch.from_numpy(drawn).reshape(len(keys), *shape)


def _in_turn(keys: Iterable[bytes], length: int = _ALL, number: int = 0) -> Fill:
    """Fills arrays with the first ``length`` bytes of each key's stream of this number, one key after another."""
    nonce = bytes(8) + number.to_bytes(8, "little")
    streams = (Cipher(algorithms.ChaCha20(key, nonce), None).encryptor() for key in keys)
    stream: Any = None
    left = 0

    def fill(words: np.ndarray) -> None:
        nonlocal stream, left
        view = words.view(np.uint8).data
        at, end = 0, len(view)
        while at < end:
            if not left:
                stream, left = next(streams), length
            part = min(left, end - at, _BLOCK)
            stream.update_into(_ZEROS[:part], view[at : at + part])
            at, left = at + part, left - part

    return fill


def _drawn(words: Fill, count: int) -> np.ndarray:
    drawn = np.empty(count, dtype="<u8")
    words(drawn)
    return drawn


def _uniform(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _laplace(words: np.ndarray) -> np.ndarray:
    sizes = -tail_logarithm(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return np.where((words & np.uint64(1)).astype(bool), sizes, -sizes).astype(np.float32)
