"""The server of secure aggregation, the honest-but-curious party: it relays sealed shares and learns a sum.

``receive`` takes the messages of the round in any order; ``end_round`` closes it and gives the answers to send. After
the fourth round, ``total`` is the sum. What a curious server holds lies open in ``masked`` and ``total``.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness.secagg.errors import Aborted, Refused
from harness.secagg.graph import connected
from harness.secagg.recovery import recover_total
from harness.secagg.session import Session
from harness.secagg.wire import (
    COMMITMENT_BYTES,
    KEYS_ENTRY,
    ROSTER_ENTRY,
    SEALED_ENTRY,
    SERVER,
    SHARE_ENTRY,
    Kind,
    pack,
    read,
    unpack,
    write,
)

ROUNDS = (Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.UNMASKING)


class Server:
    """The party that brings the clients together.

    Attributes:
        masked: client -> (length,), the masked vectors as they arrived.
        survivors: the clients whose vectors are in the sum.
        total: (length,) modulo 2^b, None before the end.
    """

    def __init__(self, session: Session, identity: Ed25519PrivateKey) -> None:
        self.session, self._identity = session, identity
        self._expected: Kind | None = Kind.KEYS
        self._present: dict[Kind, set[int]] = {kind: set() for kind in ROUNDS}
        self._messages: dict[int, bytes] = {}  # KEYS, as they were signed
        self._masking_keys: dict[int, bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # receiver -> sender -> sealed pair of shares
        self._shares: dict[int, dict[int, bytes]] = {}  # owner -> holder -> share
        self.masked: dict[int, np.ndarray] = {}
        self.total: np.ndarray | None = None

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(sorted(self._present[Kind.MASKED]))

    def receive(self, message: bytes) -> None:
        """Takes in one client's message of this round.

        Raises:
            Refused: damaged, forged, replayed, of another round or session; all that arrived before is kept.
        """
        if self._expected is None:
            raise Refused("this aggregation is over; open a new session")
        kind = self._expected
        sender, payload = read(self.session, kind, SERVER, message)
        if sender in self._present[kind]:
            raise Refused(f"client {sender} has already sent its {kind.name}; the first message counts")
        if kind is not Kind.KEYS and sender not in self._before(kind):
            raise Refused(f"client {sender} dropped out in an earlier round and cannot come back")
        if kind is Kind.KEYS:
            self._masking_keys[sender] = KEYS_ENTRY.unpack(self._sized(payload, KEYS_ENTRY.size))[1]
            self._messages[sender] = message
        elif kind is Kind.SHARES:
            self._take_shares(sender, payload)
        elif kind is Kind.MASKED:
            words = self._sized(payload, self.session.length * self.session.dtype.itemsize)
            self.masked[sender] = np.frombuffer(words, self.session.dtype.newbyteorder("<")).astype(self.session.dtype)
        else:
            self._take_unmasking(sender, payload)
        self._present[kind].add(sender)

    def end_round(self) -> dict[int, bytes]:
        """Closes the round; messages by client, none after the last round.

        Raises:
            Aborted: too few clients are left. No further message goes out, and the sum stays unknown.
        """
        kind = self._expected
        if kind is None:
            raise Refused("this aggregation is over; open a new session")
        self._require_enough(kind)
        if kind is Kind.UNMASKING:
            self._expected = None
            self.total = recover_total(
                self.session, self.masked, self._present[Kind.SHARES], self._shares, self._masking_keys,
                self._commitments,
            )  # fmt: skip
            return {}
        self._expected = ROUNDS[ROUNDS.index(kind) + 1]
        answer, payload_for = {
            Kind.KEYS: (Kind.ROSTER, self._roster),
            Kind.SHARES: (Kind.DELIVERY, self._delivery),
            Kind.MASKED: (Kind.SURVIVORS, self._list_of_survivors),
        }[kind]
        return {
            client: write(self.session, answer, SERVER, client, payload_for(client), self._identity)
            for client in sorted(self._present[kind])
        }

    def _roster(self, client: int) -> bytes:
        others = sorted(self.session.graph[client] & self._present[Kind.KEYS])
        return pack(ROSTER_ENTRY, [(self._messages[other],) for other in others])

    def _delivery(self, client: int) -> bytes:
        # Shares of clients of this round only; each sealed them for everybody on its roster.
        return pack(SEALED_ENTRY, sorted(self._sealed.get(client, {}).items()))

    def _list_of_survivors(self, client: int) -> bytes:
        bits = np.zeros(self.session.clients, dtype=np.uint8)
        bits[list(self.survivors)] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def _take_shares(self, sender: int, payload: bytes) -> None:
        entries = unpack(SEALED_ENTRY, payload[COMMITMENT_BYTES:])
        expected = self.session.graph[sender] & self._present[Kind.KEYS]
        if sorted(receiver for receiver, _ in entries) != sorted(expected):
            raise Refused(f"client {sender} did not seal one pair of shares for each of its neighbours")
        self._commitments[sender] = payload[:COMMITMENT_BYTES]
        for receiver, sealed in entries:
            self._sealed.setdefault(receiver, {})[sender] = sealed

    def _take_unmasking(self, sender: int, payload: bytes) -> None:
        entries = unpack(SHARE_ENTRY, payload)
        owners = self.session.holders(sender) & self._present[Kind.SHARES]
        asked = sorted((owner, owner in self.masked) for owner in owners)
        if sorted((owner, bool(of_seed)) for owner, of_seed, _ in entries) != asked:
            raise Refused(f"client {sender} did not send the one share per neighbour that was asked for")
        for owner, _, share in entries:
            self._shares.setdefault(owner, {})[sender] = share

    def _before(self, kind: Kind) -> set[int]:
        return self._present[ROUNDS[ROUNDS.index(kind) - 1]]

    def _sized(self, payload: bytes, size: int) -> bytes:
        if len(payload) != size:
            raise Refused(f"a payload of {len(payload)} bytes came where {size} were expected")
        return payload

    def _require_enough(self, kind: Kind) -> None:
        """Everybody whose secrets may be needed still has enough holders of its shares."""
        present, session = self._present[kind], self.session
        # A sum needs the shares of all who shared masks, whether they stayed or not.
        owners = present if kind in (Kind.KEYS, Kind.SHARES) else self._present[Kind.SHARES]
        if len(present) < session.minimum_clients:
            self._abort(f"{len(present)} of {session.clients} clients are left, {session.minimum_clients} are needed")
        for owner in sorted(owners):
            holders = len(session.holders(owner) & present)
            if holders < session.threshold:
                self._abort(f"client {owner} has {holders} holders of its shares left, {session.threshold} are needed")
        if kind is Kind.MASKED and not connected(session.graph, present):
            self._abort("the clients left do not hang together, so their sum would fall apart into sums of parts")

    def _abort(self, why: str) -> None:
        self._expected = None
        raise Aborted(f"secure aggregation ends without a sum: {why}")
