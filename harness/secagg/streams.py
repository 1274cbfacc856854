"""numpy's random numbers, keyed by what they are for like all others of the harness.

They simulate a client's noise. A deployment that needs the theorem draws them from a cryptographic source instead.
"""

import numpy as np

from harness.base.randomness import digest


def numbers(*key: int | str) -> np.random.Generator:
    """A generator that is a pure function of ``key`` (for example seed, client, round, step, purpose)."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest(*key)[:16], "big")))
