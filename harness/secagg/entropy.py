"""Where a party's secret bytes come from: the operating system, or a seed in simulations that must repeat."""

import hashlib
import itertools
import os
from collections.abc import Callable

Entropy = Callable[[int], bytes]

SYSTEM: Entropy = os.urandom


def seeded_entropy(*key: int | str) -> Entropy:
    """Bytes that are a pure function of ``key`` and of the calls before: for simulations, never for real secrets."""
    prefix = "\x1f".join(f"{type(part).__name__}:{part}" for part in key).encode()
    counter = itertools.count()

    def draw(size: int) -> bytes:
        return hashlib.shake_256(prefix + b"\x1e" + next(counter).to_bytes(8, "little")).digest(size)

    return draw
