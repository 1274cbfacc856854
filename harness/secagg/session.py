"""Settings that all parties agree on before a secure aggregation begins. All of them are public."""

import hashlib
import itertools
import math
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy import stats

from harness.base.errors import UsageError

# What a party of the protocol says when it does not go on.


class Refused(UsageError):
    """One message or input is not accepted. The party's state is unchanged: the right message is still welcome."""


class Aborted(UsageError):
    """The protocol ends here for this party, for good. Nothing it held is revealed."""


# Where a party's secret bytes come from: the operating system, or a seed in simulations that must repeat.

Entropy = Callable[[int], bytes]

SYSTEM: Entropy = os.urandom


def seeded_entropy(*key: int | str) -> Entropy:
    """Bytes that are a pure function of ``key`` and of the calls before: for simulations, never for real secrets."""
    prefix = "\x1f".join(f"{type(part).__name__}:{part}" for part in key).encode()
    counter = itertools.count()

    def draw(size: int) -> bytes:
        return hashlib.shake_256(prefix + b"\x1e" + next(counter).to_bytes(8, "little")).digest(size)

    return draw


# Who shares masks and secrets with whom: everybody, or k neighbours each (Bell et al., CCS 2020, section 3).

Graph = tuple[frozenset[int], ...]

SMALL = 32


def recommended_degree(clients: int) -> int | None:
    """Neighbours per client, O(log N); None, the complete graph, up to 32 clients."""
    if clients <= SMALL:
        return None
    return min(clients - 1, max(10, 4 * math.ceil(math.log2(clients))))


def neighbours(clients: int, degree: int | None, seed: bytes) -> Graph:
    """The neighbours of every client: a Harary graph over a random order of the clients.

    The order is a public function of ``seed``, which must be drawn after an adversary has chosen whom to corrupt.

    Args:
        degree: even and below ``clients``; None for the complete graph.
    """
    if degree is None:
        return tuple(frozenset(range(clients)) - {client} for client in range(clients))
    order = np.random.default_rng(list(hashlib.sha256(b"graph" + seed).digest())).permutation(clients)
    found: list[set[int]] = [set() for _ in range(clients)]
    for offset in range(1, degree // 2 + 1):
        for one, other in zip(order.tolist(), np.roll(order, -offset).tolist(), strict=True):
            found[one].add(other)
            found[other].add(one)
    return tuple(frozenset(group) for group in found)


def connected(graph: Graph, among: Iterable[int]) -> bool:
    """Return whether the clients ``among`` hang together; else the server would learn the sum of every part by
    itself."""
    left = set(among)
    reached = {left.pop()} if left else set()
    while reached:
        reached = left.intersection(set().union(*(graph[client] for client in reached)))
        left -= reached
    return not left


def failure_probability(clients: int, degree: int | None, threshold: int, dropped: int) -> float:
    """Upper bound of the chance that so many random dropouts leave some client with fewer than t holders.

    A union bound over the clients; the holders of a client's shares are its neighbours and itself.
    """
    holders = clients if degree is None else degree + 1
    return min(1.0, clients * float(stats.hypergeom(clients, clients - dropped, holders).cdf(threshold - 1)))


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
        threshold: t, how many holders of a client's shares give its secrets; above the number of colluders.
        minimum_clients: how many must stay to the end. Clients refuse to unmask a sum of fewer.
        colluders: C, how many clients may help the server; at least two others stay, as they know their own vectors.
        consistency: whether clients compare what the server told them before they reveal shares
            (:mod:`harness.secagg.consistency`). Without it the protocol withstands a server that follows it and up to C
            clients who tell it all they hold, and promises nothing against one that tells clients different things.
        client_keys, server_key: Ed25519 public keys (32 bytes each) by which messages are signed. All clients know
            them beforehand from a registry that the server cannot write to: keys that it invents are its colluders.
    """

    identifier: bytes
    clients: int
    length: int
    bits: int
    degree: int | None
    threshold: int
    minimum_clients: int
    colluders: int
    consistency: bool
    client_keys: tuple[bytes, ...]
    server_key: bytes

    def __post_init__(self) -> None:
        """Raises UsageError for settings that are impossible or do not give what is argued for consistency."""
        _require_whole(self.clients, self.length, self.bits, self.threshold, self.minimum_clients, self.colluders)
        most = MOST_CLIENTS
        _require(2 <= self.clients <= most, f"secure aggregation takes 2 to {most} clients, not {self.clients}")
        _require(1 <= self.bits <= 64, f"the ring has 1 to 64 bits, not {self.bits}")
        _require(self.length >= 1, f"vectors have at least one element, not {self.length}")
        most = self.clients - 2
        _require(0 <= self.colluders <= most, f"0 to {most} clients may collude with the server, not {self.colluders}")
        most = self.clients if self.degree is None else self.degree + 1
        _require(
            2 <= self.threshold <= most,
            f"the threshold must be 2 to {most}, the holders of a share, not {self.threshold}; choose one of these, or "
            "let more clients take part",
        )
        _require(
            self.threshold > self.colluders,
            f"{self.colluders} colluders hold enough shares to unmask anybody (the threshold is {self.threshold}); "
            "expect fewer of them or fewer dropouts",
        )
        most, least = self.clients, self.minimum_clients
        _require(2 <= least <= most, f"the fewest clients of a sum must be 2 to {most}, not {least}")
        _require(
            least - self.colluders >= 2,
            f"{self.colluders} colluders take their own vectors off a sum of {least} clients and may see a single one; "
            "raise minimum_clients (expect fewer dropouts or colluders)",
        )
        _require(
            not self.consistency or least >= self.quorum,
            f"{self.quorum} of {most} clients must stay to bind a server that tells them different "
            f"things, not {least}; raise minimum_clients (expect fewer dropouts or colluders), or trust the server "
            "(consistency=False, or protocol=semi_honest of a secure sum)",
        )
        _require(
            self.degree is None or not self.colluders or most - least + self.colluders < self.degree,
            f"{most - least} dropouts and {self.colluders} colluders may cut a graph of {self.degree} neighbours into "
            "parts; raise degree or minimum_clients (expect fewer dropouts)",
        )
        _require(len(set(self.client_keys)) == most, "every client needs a key of its own")

    @cached_property
    def digest(self) -> bytes:
        """A hash of everything above; it is part of every signature and of every key's derivation."""
        numbers = (
            self.clients, self.length, self.bits, self.degree or 0, self.threshold, self.minimum_clients,
            self.colluders, self.consistency,
        )  # fmt: skip
        keys = b"".join(self.client_keys)
        return hashlib.sha256(self.identifier + struct.pack("<8Q", *numbers) + keys + self.server_key).digest()

    @cached_property
    def graph(self) -> Graph:
        """The neighbours of every client."""
        return neighbours(self.clients, self.degree, self.identifier)

    @property
    def quorum(self) -> int:
        """q, the fewest signers of which any two groups share an honest client: more than (N + C) / 2."""
        return (self.clients + self.colluders) // 2 + 1

    @property
    def dtype(self) -> np.dtype:
        """The word that holds a ring element: uint32 up to 32 bits, else uint64."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)

    @property
    def largest(self) -> np.unsignedinteger:
        """2^b - 1, the largest ring element, which is also the mask that reduces a word."""
        return self.dtype.type(2**self.bits - 1)

    def holders(self, client: int) -> frozenset[int]:
        """Return who gets shares of a client's secrets: its neighbours and itself."""
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
    colluders: int = 0,
    consistency: bool = True,
) -> Parties:
    """Checks the settings, fills in the thresholds, and plays the key registry: one identity per party.

    Args:
        degree: neighbours per client, made even; None, or N-1 and more, is the complete graph.
        threshold: by default two thirds of all clients, or 0.6 of the neighbours, and above the colluders.
        minimum_clients: by default the same share of all clients as the threshold is of the holders, and two more than
            the colluders; with consistency more than half of the clients and colluders.

    Raises:
        UsageError: an impossible setting, or one that does not give what :mod:`harness.secagg.consistency` argues; the
            message names it.
    """
    given = (degree, threshold, minimum_clients)
    _require_whole(clients, length, bits, colluders, *(value for value in given if value is not None))
    if degree is not None:
        _require(degree >= 2, f"every client needs at least 2 neighbours, not {degree}")
        degree = degree + degree % 2
        degree = None if degree >= clients - 1 else degree
    holders = clients if degree is None else degree + 1
    if threshold is None:
        threshold = max(math.ceil(2 * clients / 3) if degree is None else math.ceil(0.6 * degree), colluders + 1)
    if minimum_clients is None:
        share = math.ceil(threshold * clients / holders)
        minimum_clients = max(share, (clients + colluders) // 2 + 1 if consistency else colluders + 2)
    identities = tuple(Ed25519PrivateKey.from_private_bytes(entropy(32)) for _ in range(clients))
    server = Ed25519PrivateKey.from_private_bytes(entropy(32))
    session = Session(
        entropy(16), clients, length, bits, degree, threshold, minimum_clients, colluders, consistency,
        tuple(identity.public_key().public_bytes_raw() for identity in identities),
        server.public_key().public_bytes_raw(),
    )  # fmt: skip
    return Parties(session, identities, server)


def _require_whole(*values: object) -> None:
    for value in values:
        _require(isinstance(value, Integral), f"settings of secure aggregation are whole numbers, not {value!r}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UsageError(otherwise)
