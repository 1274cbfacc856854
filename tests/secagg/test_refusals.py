"""Tampered, replayed and misplaced messages are refused, what was there stays, and the sum is still right."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.secagg import Aborted, Client, Parties, Refused, Server, aggregate, open_session, seeded_entropy
from harness.secagg.wire import ROSTER_ENTRY, SERVER, SHARE_ENTRY, Kind, pack, read, unpack, write

VECTOR = np.arange(6, dtype=np.uint32)
STEPS = ("announce", "share", "acknowledge", "mask", "consent", "unmask")
Visit = Callable[[str, "Client | Server", bytes], None]


def parties_of(clients: int = 4, name: str = "session", **settings: int) -> Parties:
    return open_session(clients, 6, entropy=seeded_entropy(name), **settings)


def act(client: Client, step: str, message: bytes) -> bytes:
    arguments = {"announce": (), "mask": (message, VECTOR)}.get(step, (message,))
    return getattr(client, step)(*arguments)


def run(visit: Visit, clients: int = 4, parties: Parties | None = None) -> Server:
    """A whole session in which ``visit`` may try each message on its receiver before the receiver gets it."""
    parties = parties or parties_of(clients)
    server = Server(parties.session, parties.server_identity)
    identities = enumerate(parties.client_identities)
    members = [Client(parties.session, index, identity, seeded_entropy(index)) for index, identity in identities]
    inbox = dict.fromkeys(range(clients), b"")
    for step in STEPS:
        answers = []
        for index, message in inbox.items():
            if step != "announce":
                visit(step, members[index], message)
            answers.append(act(members[index], step, message))
        for answer in answers:
            visit("receive", server, answer)
            server.receive(answer)
        inbox = server.end_round()
    return server


def test_one_flipped_bit_anywhere_is_refused_and_nothing_is_lost() -> None:
    def tamper(step: str, party: Client | Server, message: bytes) -> None:
        digest = int.from_bytes(hashlib.sha256(message).digest(), "little")
        for place in {*range(0, 37), digest % len(message), len(message) - 1}:
            changed = bytearray(message)
            changed[place] ^= 1 << digest % 8
            with pytest.raises(Refused):
                party.receive(bytes(changed)) if isinstance(party, Server) else act(party, step, bytes(changed))

    server = run(tamper, clients=3)
    assert np.array_equal(server.total, 3 * VECTOR)


NO_BYTES = [(lambda _, thing=thing: thing, "a message is bytes, not")
            for thing in (None, "SAG2", 7, [1], bytearray(200), np.zeros(200, np.uint8))]  # fmt: skip
SHORTENED = [(lambda message, cut=cut: message[:cut], ".") for cut in (0, 10, 96, -1)]


@pytest.mark.parametrize(("spoil", "words"), [*NO_BYTES, *SHORTENED])
def test_what_is_no_whole_message_is_refused(spoil: Callable[[bytes], Any], words: str) -> None:
    def offer(step: str, party: Client | Server, message: bytes) -> None:
        with pytest.raises(Refused, match=words):
            party.receive(spoil(message)) if isinstance(party, Server) else act(party, step, spoil(message))

    assert np.array_equal(run(offer).total, 4 * VECTOR)


def test_replayed_and_wrong_round_messages_are_refused() -> None:
    seen: list[tuple[int, bytes]] = []

    def replay(step: str, party: Client | Server, message: bytes) -> None:
        place = id(party) if isinstance(party, Server) else party.index
        for where, old in seen:
            with pytest.raises(Refused):
                if isinstance(party, Server):
                    party.receive(old)
                elif where == place or step != "share":
                    act(party, step, old)
                else:
                    raise Refused("not tried")
        seen.append((place, message))

    assert np.array_equal(run(replay).total, 4 * VECTOR)


def test_a_duplicate_is_refused_and_the_first_message_counts() -> None:
    parties = parties_of()
    server = Server(parties.session, parties.server_identity)
    message = Client(parties.session, 2, parties.client_identities[2]).announce()
    again = Client(parties.session, 2, parties.client_identities[2]).announce()
    server.receive(message)
    for repeated in (message, again):
        with pytest.raises(Refused, match=r"client 2 has already sent its KEYS"):
            server.receive(repeated)
    assert server._messages == {2: message}


@pytest.mark.parametrize("other", [parties_of(name="another"), parties_of(threshold=4)])
def test_messages_of_another_session_or_other_settings_are_refused(other: Parties) -> None:
    server = Server(parties_of().session, parties_of().server_identity)
    with pytest.raises(Refused, match=r"session|signature"):
        server.receive(Client(other.session, 0, other.client_identities[0]).announce())


def test_nobody_speaks_for_another() -> None:
    parties = parties_of()
    session, server = parties.session, Server(parties.session, parties.server_identity)
    with pytest.raises(Refused, match="signature of client 1"):
        server.receive(Client(session, 1, parties.client_identities[0]).announce())
    for sender, words in ((77, "client 77"), (SERVER, "signature of the server")):
        with pytest.raises(Refused, match=words):
            server.receive(write(session, Kind.KEYS, sender, SERVER, bytes(64), parties.client_identities[0]))
    client = Client(session, 0, parties.client_identities[0])
    client.announce()
    with pytest.raises(Refused, match="only the server sends"):
        client.share(write(session, Kind.ROSTER, 1, 0, b"", parties.client_identities[1]))


def test_a_server_cannot_put_its_own_keys_in_a_neighbours_place() -> None:
    parties = parties_of()
    session = parties.session

    def swap(step: str, party: Client | Server, message: bytes) -> None:
        if step != "share":
            return
        entries = unpack(ROSTER_ENTRY, read(session, Kind.ROSTER, party.index, message)[1])
        forged = write(session, Kind.KEYS, (party.index + 1) % 4, SERVER, bytes(range(64)), parties.server_identity)
        for rows in ([(forged,), *entries[1:]], [entries[0], *entries]):
            answer = write(session, Kind.ROSTER, SERVER, party.index, pack(ROSTER_ENTRY, rows), parties.server_identity)
            with pytest.raises(Refused, match=r"signature|twice"):
                party.share(answer)

    assert np.array_equal(run(swap, parties=parties).total, 4 * VECTOR)


@pytest.mark.parametrize(("wrong", "recovers"), [({1}, True), ({1, 2}, False)])
def test_wrong_shares_are_noticed(wrong: set[int], recovers: bool) -> None:
    parties = open_session(4, 6, threshold=3, minimum_clients=3, entropy=seeded_entropy("wrong shares"))
    session = parties.session
    server = Server(session, parties.server_identity)
    members = [Client(session, index, identity) for index, identity in enumerate(parties.client_identities)]
    inbox = dict.fromkeys(range(4), b"")
    for step in STEPS:
        for index, message in inbox.items():
            answer = act(members[index], step, message)
            if step == "unmask" and index in wrong:
                entries = unpack(SHARE_ENTRY, read(session, Kind.UNMASKING, SERVER, answer)[1])
                payload = pack(SHARE_ENTRY, [(owner, kind, bytes([index]) * 33) for owner, kind, _ in entries])
                answer = write(session, Kind.UNMASKING, index, SERVER, payload, parties.client_identities[index])
            server.receive(answer)
        if step == "unmask" and not recovers:
            with pytest.raises(Aborted, match="do not give its secret"):
                server.end_round()
            assert server.total is None
            return
        inbox = server.end_round()
    assert np.array_equal(server.total, 4 * VECTOR)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("degree", [None, 4])
def test_below_the_threshold_it_aborts(stage: int, degree: int | None) -> None:
    parties = open_session(10, 6, degree=degree, entropy=seeded_entropy("abort"))
    leaves = dict.fromkeys(range(5), stage)
    with pytest.raises(Aborted, match=r"ends without a sum: .* (are|is) needed"):
        aggregate(parties, np.tile(VECTOR, (10, 1)), leaves, seed=("abort",))


def test_after_an_abort_the_server_asks_for_nothing_more() -> None:
    parties = parties_of()
    server = Server(parties.session, parties.server_identity)
    messages = [Client(parties.session, index, parties.client_identities[index]).announce() for index in (0, 1, 2)]
    for message in messages[:2]:
        server.receive(message)
    with pytest.raises(Aborted, match="2 of 4 clients are left, 3 are needed"):
        server.end_round()
    for call in (server.end_round, lambda: server.receive(messages[2])):
        with pytest.raises(Refused, match="over"):
            call()
    assert server.total is None


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        (VECTOR[:5], r"uint32 \(6,\) was expected"),
        (VECTOR.astype(np.int64), "int64"),
        (VECTOR + np.uint32(2**20 - 3), "elements of 2\\^20 and more"),
        ([1, 2], "list"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused_before_anything_is_sent(vector: object, words: str) -> None:
    parties = parties_of(bits=20)
    refused = []

    def offer(step: str, party: Client | Server, message: bytes) -> None:
        if step == "mask":
            with pytest.raises(Refused, match=words):
                party.mask(message, vector)
            refused.append(party.index)

    assert np.array_equal(run(offer, parties=parties).total, 4 * VECTOR)
    assert len(refused) == 4
