"""Sets of clients as bytes: one bit per client, the lowest first."""

from collections.abc import Iterable

import numpy as np

from harness.secagg.errors import Refused
from harness.secagg.session import Session


def to_bits(session: Session, clients: Iterable[int]) -> bytes:
    """(N + 7) // 8 bytes."""
    bits = np.zeros(session.clients, dtype=np.uint8)
    bits[list(clients)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def from_bits(session: Session, payload: bytes) -> frozenset[int]:
    """The clients of a payload.

    Raises:
        Refused: it does not have one bit per client of the session.
    """
    found = np.flatnonzero(np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little"))
    if len(payload) != bits_size(session) or (found.size and found[-1] >= session.clients):
        raise Refused("a list of clients does not have one bit per client")
    return frozenset(found.tolist())


def bits_size(session: Session) -> int:
    """Bytes of a set."""
    return (session.clients + 7) // 8
