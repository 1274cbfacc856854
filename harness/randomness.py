"""Random numbers keyed by what they are for, so that no result depends on batching, chunking or resuming."""

import hashlib

import torch
from torch import Tensor


def derive_seed(*key: int | str) -> int:
    """A 63-bit seed that is a pure function of ``key`` (for example seed, purpose, victim, round, step)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by ``key``; draws are made on the CPU so that every device sees the same numbers."""
    return torch.Generator().manual_seed(derive_seed(*key))


def normal_rows(keys: list[tuple[int | str, ...]], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Standard normal noise (R, *shape) with one independent stream per row, on the device and dtype of ``like``."""
    rows = [torch.randn(shape, generator=generator(*key), dtype=torch.float32) for key in keys]
    return torch.stack(rows).to(device=like.device, dtype=like.dtype)
