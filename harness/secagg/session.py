"""What all parties agree on before a secure aggregation begins. All of it is public."""

import hashlib
import math
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness.errors import UsageError
from harness.secagg.entropy import SYSTEM, Entropy
from harness.secagg.graph import Graph, neighbours

MOST_CLIENTS = 100_000


@dataclass(frozen=True)
class Session:
    """The settings of one aggregation of one vector per client.

    Attributes:
        identifier: 16 bytes, never used twice.
        clients: N, at least 2; clients are called 0 to N-1.
        length: words per vector.
        bits: b of the ring of integers modulo 2^b, 1 to 64.
        degree: neighbours per client (even), or None for the complete graph.
        threshold: t, how many holders of a client's shares give its secrets. Above half of the holders even a server
            that tells clients different things cannot get both secrets of one; a lower t withstands an honest server
            and fewer than t colluding holders.
        minimum_clients: clients refuse to unmask a sum of fewer.
        client_keys, server_key: Ed25519 public keys (32 bytes each) by which messages are signed, known beforehand.
    """

    identifier: bytes
    clients: int
    length: int
    bits: int
    degree: int | None
    threshold: int
    minimum_clients: int
    client_keys: tuple[bytes, ...] = ()
    server_key: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """A hash of everything above; it is part of every signature and of every key's derivation."""
        numbers = (self.clients, self.length, self.bits, self.degree or 0, self.threshold, self.minimum_clients)
        keys = b"".join(self.client_keys)
        return hashlib.sha256(self.identifier + struct.pack("<6Q", *numbers) + keys + self.server_key).digest()

    @cached_property
    def graph(self) -> Graph:
        """The neighbours of every client."""
        return neighbours(self.clients, self.degree, self.identifier)

    @property
    def dtype(self) -> np.dtype:
        """The word that holds a ring element: uint32 up to 32 bits, else uint64."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)

    @property
    def largest(self) -> np.unsignedinteger:
        """2^b - 1, the largest ring element, which is also the mask that reduces a word."""
        return self.dtype.type(2**self.bits - 1)

    def holders(self, client: int) -> frozenset[int]:
        """Who gets shares of a client's secrets: its neighbours and itself."""
        return self.graph[client] | {client}


@dataclass(frozen=True)
class Parties:
    """A session and the signing keys of its parties, which in a deployment live apart."""

    session: Session
    client_identities: tuple[Ed25519PrivateKey, ...]
    server_identity: Ed25519PrivateKey


def open_session(
    clients: int,
    length: int,
    bits: int = 32,
    degree: int | None = None,
    threshold: int | None = None,
    minimum_clients: int | None = None,
    entropy: Entropy = SYSTEM,
) -> Parties:
    """Checks the settings, fills in the thresholds, and plays the key registry: one identity per party.

    Args:
        degree: neighbours per client, made even; None, or N-1 and more, is the complete graph.
        threshold: by default two thirds of all clients, or 0.6 of the neighbours.
        minimum_clients: by default the same share of all clients as the threshold is of the holders.

    Raises:
        UsageError: an impossible setting; the message names it.
    """
    _require(2 <= clients <= MOST_CLIENTS, f"secure aggregation takes 2 to {MOST_CLIENTS} clients, not {clients}")
    _require(1 <= bits <= 64, f"the ring has 1 to 64 bits, not {bits}")
    _require(length >= 1, f"vectors have at least one element, not {length}")
    if degree is not None:
        _require(degree >= 2, f"every client needs at least 2 neighbours, not {degree}")
        degree = degree + degree % 2
        degree = None if degree >= clients - 1 else degree
    holders = clients if degree is None else degree + 1
    if threshold is None:
        threshold = math.ceil(2 * clients / 3) if degree is None else math.ceil(0.6 * degree)
    _require(
        2 <= threshold <= holders, f"the threshold must be 2 to {holders}, the holders of a share, not {threshold}"
    )
    least = math.ceil(threshold * clients / holders) if minimum_clients is None else minimum_clients
    _require(2 <= least <= clients, f"the fewest clients of a sum must be 2 to {clients}, not {least}")
    identities = tuple(Ed25519PrivateKey.from_private_bytes(entropy(32)) for _ in range(clients))
    server = Ed25519PrivateKey.from_private_bytes(entropy(32))
    session = Session(
        entropy(16), clients, length, bits, degree, threshold, least,
        tuple(identity.public_key().public_bytes_raw() for identity in identities),
        server.public_key().public_bytes_raw(),
    )  # fmt: skip
    return Parties(session, identities, server)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UsageError(otherwise)
