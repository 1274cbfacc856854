"""All parties of one aggregation in one process: repeatable, with dropouts, and with the bill of every round."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.secagg.client import Client
from harness.secagg.server import Server
from harness.secagg.session import SYSTEM, Entropy, Parties, seeded_entropy
from harness.secagg.wire import Kind, rounds

# When a client may leave: before its keys, its shares, its masked vector, or after that.
STAGES = {
    Kind.KEYS: 0, Kind.SHARES: 1, Kind.RECEIPTS: 1, Kind.MASKED: 2, Kind.CONSENT: 3, Kind.UNMASKING: 3,
}  # fmt: skip


@dataclass
class RoundCost:
    """What one round took.

    Attributes:
        client_seconds: per client that answered.
        sent, received: bytes per client that answered.
        server_seconds: taking in the messages and closing the round.
    """

    name: str
    client_seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    server_seconds: float = 0.0


@dataclass(frozen=True)
class Aggregation:
    """What the server holds at the end, and what it took.

    Attributes:
        total: (length,), the sum of the survivors' vectors modulo 2^b.
        survivors: the clients in the sum.
        masked: client -> (length,), each masked vector as the server received it.
    """

    total: np.ndarray
    survivors: tuple[int, ...]
    masked: dict[int, np.ndarray]
    costs: list[RoundCost]


def aggregate(
    parties: Parties,
    vectors: np.ndarray,
    leaves: Mapping[int, int] | None = None,
    seed: tuple[int | str, ...] | None = None,
) -> Aggregation:
    """Runs the protocol between its state machines, which exchange nothing but bytes.

    Args:
        vectors: (N, length) ring elements.
        leaves: client -> the stage (0 to 3) from which on it is silent: 0 announces keys, 1 shares secrets, 2 masks the
            vector, 3 consents and unmasks.
        seed: makes all secrets a function of it; None takes them from the operating system.

    Raises:
        Aborted: too few clients are left.
        Refused: a vector does not fit the session.
    """
    session = parties.session
    leaves = leaves or {}
    clients = [
        Client(session, index, identity, _entropy(seed, index))
        for index, identity in enumerate(parties.client_identities)
    ]
    server = Server(session, parties.server_identity)
    costs: list[RoundCost] = []
    inbox = dict.fromkeys(range(session.clients), b"")
    for kind in rounds(session):
        cost = RoundCost(kind.name.lower())
        outbox = [
            _answer(clients[index], kind, message, vectors[index], cost)
            for index, message in inbox.items()
            if leaves.get(index, len(STAGES)) > STAGES[kind]
        ]
        start = time.perf_counter()
        for message in outbox:
            server.receive(message)
        inbox = server.end_round()
        cost.server_seconds = time.perf_counter() - start
        costs.append(cost)
    assert server.total is not None  # every round is over
    return Aggregation(server.total, server.survivors, server.masked, costs)


def _answer(client: Client, kind: Kind, message: bytes, vector: np.ndarray, cost: RoundCost) -> bytes:
    start = time.perf_counter()
    answer = {
        Kind.KEYS: client.announce,
        Kind.SHARES: lambda: client.share(message),
        Kind.RECEIPTS: lambda: client.acknowledge(message),
        Kind.MASKED: lambda: client.mask(message, vector),
        Kind.CONSENT: lambda: client.consent(message),
        Kind.UNMASKING: lambda: client.unmask(message),
    }[kind]()
    cost.client_seconds.append(time.perf_counter() - start)
    cost.sent.append(len(answer))
    cost.received.append(len(message))
    return answer


def _entropy(seed: tuple[int | str, ...] | None, index: int) -> Entropy:
    return SYSTEM if seed is None else seeded_entropy("client", *seed, index)
