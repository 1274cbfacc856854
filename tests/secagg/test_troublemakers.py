"""One client that sends garbage, in any round, is left out of the sum or of what comes after; the sum is exact."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from harness.secagg import Aborted, Client, Parties, Refused, Server, open_session, seeded_entropy
from harness.secagg.consistency import to_bits
from harness.secagg.server import without_troublemakers
from harness.secagg.wire import COMMITMENT_BYTES, SEALED_ENTRY, SERVER, Kind, pack, read, rounds, unpack, write

BAD = 3
Spoil = Callable[[Kind, bytes], bytes]


def run(parties: Parties, spoil: Spoil) -> Server:
    """A session in which the payloads of client ``BAD`` pass through ``spoil`` before it signs them."""
    session = parties.session
    server = Server(session, parties.server_identity)
    members = [Client(session, *party, seeded_entropy(party[0])) for party in enumerate(parties.client_identities)]
    inbox = dict.fromkeys(range(session.clients), b"")
    for kind in rounds(session):
        for index, message in inbox.items():
            client = members[index]
            answer = {
                Kind.KEYS: lambda c=client: c.announce(),
                Kind.SHARES: lambda c=client, m=message: c.share(m),
                Kind.RECEIPTS: lambda c=client, m=message: c.acknowledge(m),
                Kind.MASKED: lambda c=client, m=message: c.mask(m, np.full(5, c.index, dtype=np.uint32)),
                Kind.CONSENT: lambda c=client, m=message: c.consent(m),
                Kind.UNMASKING: lambda c=client, m=message: c.unmask(m),
            }[kind]()
            if index != BAD:
                server.receive(answer)
                continue
            payload = spoil(kind, read(session, kind, SERVER, answer)[1])
            try:
                server.receive(write(session, kind, BAD, SERVER, payload, parties.client_identities[BAD]))
            except Refused:
                continue
        inbox = server.end_round()
    return server


def garbage_seals(payload: bytes, good: int) -> bytes:
    """Seals that open for the first ``good`` receivers only."""
    rows = unpack(SEALED_ENTRY, payload[COMMITMENT_BYTES:])
    spoilt = [(who, sealed if place < good else bytes(len(sealed))) for place, (who, sealed) in enumerate(rows)]
    return payload[:COMMITMENT_BYTES] + pack(SEALED_ENTRY, spoilt)


def at(when: Kind, change: Callable[[bytes], bytes]) -> Spoil:
    return lambda kind, payload: change(payload) if kind is when else payload


def accuse_everybody(_: bytes) -> bytes:
    return to_bits(SimpleNamespace(clients=9), {BAD})


@pytest.mark.parametrize("degree", [pytest.param(None, marks=pytest.mark.slow), 6])
@pytest.mark.parametrize(
    ("spoil", "counts"),
    [
        (at(Kind.KEYS, lambda payload: bytes(len(payload))), False),
        (at(Kind.KEYS, lambda payload: payload[:-1]), False),
        (at(Kind.SHARES, lambda payload: garbage_seals(payload, 0)), False),
        (at(Kind.SHARES, lambda payload: garbage_seals(payload, 4)), False),
        (at(Kind.SHARES, lambda payload: payload[:-1]), False),
        (at(Kind.RECEIPTS, accuse_everybody), False),
        (at(Kind.RECEIPTS, lambda payload: b"\xff" * len(payload)), False),
        (at(Kind.MASKED, lambda payload: bytes(64) + payload[64:]), False),
        (at(Kind.CONSENT, lambda payload: bytes(len(payload))), True),
        (at(Kind.CONSENT, lambda payload: b""), True),
        (at(Kind.UNMASKING, lambda payload: bytes(len(payload))), True),
    ],
)
def test_one_client_that_sends_garbage_does_not_stop_the_sum(degree: int | None, spoil: Spoil, counts: bool) -> None:
    parties = open_session(9, 5, degree=degree, entropy=seeded_entropy("garbage"))
    server = run(parties, spoil)
    assert server.survivors == tuple(client for client in range(9) if counts or client != BAD)
    assert server.total.tolist() == [sum(server.survivors)] * 5


def test_one_seal_that_does_not_open_costs_one_share() -> None:
    last = len(open_session(9, 5).session.graph[BAD]) - 1
    server = run(open_session(9, 5), at(Kind.SHARES, lambda payload: garbage_seals(payload, last)))
    assert server.survivors == tuple(range(9)) and server.total.tolist() == [36] * 5


def test_where_nobody_may_be_missing_garbage_ends_the_session() -> None:
    with pytest.raises(Aborted, match="8 of 9 clients are left, 9 are needed"):
        run(open_session(9, 5, minimum_clients=9), at(Kind.SHARES, lambda payload: garbage_seals(payload, 0)))


@pytest.mark.parametrize(
    ("unopened", "left"),
    [
        ({}, {0, 1, 2, 3}),
        ({0: {3}}, {0, 1, 2, 3}),
        ({0: {3}, 1: {3}}, {0, 1, 2}),
        ({3: {0, 1, 2}}, {0, 1, 2}),
        ({0: {9}, 1: {9}}, {0, 1, 2, 3}),
    ],
)
def test_who_leaves(unopened: dict[int, set[int]], left: set[int]) -> None:
    clients = {0, 1, 2, 3}
    assert without_troublemakers(clients, {client: unopened.get(client, set()) for client in clients}) == left
