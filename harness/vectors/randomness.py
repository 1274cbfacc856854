"""Random numbers keyed by what they are for, so that no result depends on batching, chunking or resuming."""

import hashlib
import math

import torch
from torch import Tensor


def derive_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of ``key`` (for example seed, purpose, victim, round, step)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by ``key``; draws are made on the CPU so that every device sees the same numbers."""
    return torch.Generator().manual_seed(derive_seed(*key))


def poisson_sample(shape: tuple[int, ...], rate: float, random: torch.Generator) -> Tensor:
    """Booleans of a shape: who takes part, each with probability ``rate`` in [0, 1], or less by at most 2^-24.

    Uniform numbers are multiples of 2^-24; below the rate itself would lie one more of them than the accounted rate
    allows.
    """
    return torch.rand(shape, generator=random, dtype=torch.float32) < math.floor(rate * 2**24) / 2**24


def normal_rows(keys: list[tuple[int | str, ...]], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal noise (R, *shape) with one independent stream per row, on the device and dtype of ``like``."""
    rows = [torch.randn(shape, generator=generator(*key), dtype=torch.float32) for key in keys]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)


def laplace_rows(keys: list[tuple[int | str, ...]], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Laplace noise of scale 1 (standard deviation sqrt 2) in the form of :func:`normal_rows`."""
    rows = []
    for key in keys:
        # The difference of two exponential variables; unlike the logarithm of a uniform one it is never infinite.
        first, second = torch.empty(2, *shape).exponential_(generator=generator(*key))
        rows.append(first - second)
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)


def uniform_rows(keys: list[tuple[int | str, ...]], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) in the form of :func:`normal_rows`."""
    rows = [torch.rand(shape, generator=generator(*key), dtype=torch.float32) for key in keys]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)
