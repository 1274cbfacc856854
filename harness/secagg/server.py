"""The server of secure aggregation as it should be: it relays sealed shares and learns a sum.

``receive`` takes the messages of the round in any order; ``end_round`` closes it and gives the answers to send. What a
client sends that is not right is refused, and a client that sends nothing right counts as one that dropped out. After
the last round, ``total`` is the sum. What a curious server holds lies open in ``masked`` and ``total``.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harness.secagg.attendance import Attendance
from harness.secagg.client_sets import from_bits, to_bits
from harness.secagg.consistency import members_statement, require_signed, survivors_statement
from harness.secagg.errors import Refused
from harness.secagg.primitives import gives_secrets
from harness.secagg.recovery import recover_total
from harness.secagg.session import Session
from harness.secagg.wire import (
    COMMITMENT_BYTES,
    CONSENT_ENTRY,
    KEYS_ENTRY,
    ROSTER_ENTRY,
    SEALED_ENTRY,
    SERVER,
    SHARE_ENTRY,
    SIGNATURE_BYTES,
    Kind,
    pack,
    read,
    unpack,
    write,
)


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
        self._attendance = Attendance(session)
        self._messages: dict[int, bytes] = {}  # KEYS, as they were signed
        self._masking_keys: dict[int, bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # receiver -> sender -> sealed pair of shares
        self._vouched: dict[int, bytes] = {}  # signatures of the members
        self._consents: dict[int, bytes] = {}  # signatures of the members and survivors
        self._shares: dict[int, dict[int, bytes]] = {}  # owner -> holder -> share
        self.masked: dict[int, np.ndarray] = {}
        self.total: np.ndarray | None = None

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(sorted(self._attendance.present[Kind.MASKED]))

    def receive(self, message: bytes) -> None:
        """Takes in one client's message of this round.

        Raises:
            Refused: damaged, forged, replayed, of another round or session; all that arrived before is kept.
        """
        if self._expected is None:
            raise Refused("this aggregation is over; open a new session")
        kind = self._expected
        sender, payload = read(self.session, kind, SERVER, message)
        self._attendance.require_due(kind, sender)
        {
            Kind.KEYS: self._take_keys,
            Kind.SHARES: self._take_shares,
            Kind.RECEIPTS: self._take_receipts,
            Kind.MASKED: self._take_masked,
            Kind.CONSENT: self._take_consent,
            Kind.UNMASKING: self._take_unmasking,
        }[kind](sender, payload)
        if kind is Kind.KEYS:
            self._messages[sender] = message
        self._attendance.present[kind].add(sender)

    def end_round(self) -> dict[int, bytes]:
        """Closes the round; messages by client, none after the last round.

        Raises:
            Aborted: too few clients are left. No further message goes out, and the sum stays unknown.
        """
        kind = self._expected
        if kind is None:
            raise Refused("this aggregation is over; open a new session")
        if kind is Kind.RECEIPTS:
            self._attendance.settle_members()
        self._expected = None  # for good, unless there are enough
        self._attendance.require_enough(kind)
        if kind is Kind.UNMASKING:
            self.total = recover_total(
                self.session, self.masked, self._members, self._shares, self._masking_keys,
                self._commitments,
            )  # fmt: skip
            return {}
        self._expected = self._attendance.rounds[self._attendance.rounds.index(kind) + 1]
        answer, payload_for = {
            Kind.KEYS: (Kind.ROSTER, self._roster),
            Kind.SHARES: (Kind.DELIVERY, self._delivery),
            Kind.RECEIPTS: (Kind.MEMBERS, lambda _: to_bits(self.session, self._members)),
            Kind.MASKED: (Kind.SURVIVORS, self._list_of_survivors),
            Kind.CONSENT: (Kind.CERTIFICATE, lambda _: self._certificate()),
        }[kind]
        return {
            client: write(self.session, answer, SERVER, client, payload_for(client), self._identity)
            for client in sorted(self._attendance.present[kind])
        }

    def _roster(self, client: int) -> bytes:
        others = sorted(self.session.graph[client] & self._attendance.present[Kind.KEYS])
        return pack(ROSTER_ENTRY, [(self._messages[other],) for other in others])

    def _delivery(self, client: int) -> bytes:
        # Shares of clients of this round only; each sealed them for everybody on its roster.
        return pack(SEALED_ENTRY, sorted(self._sealed.get(client, {}).items()))

    def _list_of_survivors(self, client: int) -> bytes:
        beside = sorted(self.session.graph[client] & self.masked.keys()) if self.session.consistency else []
        return to_bits(self.session, self.masked) + b"".join(self._vouched[other] for other in beside)

    def _certificate(self) -> bytes:
        return pack(CONSENT_ENTRY, sorted(self._consents.items())[: self.session.quorum])

    def _take_keys(self, sender: int, payload: bytes) -> None:
        sealing, masking = KEYS_ENTRY.unpack(self._sized(payload, KEYS_ENTRY.size))
        if not (gives_secrets(sealing) and gives_secrets(masking)):
            raise Refused(f"the public keys of client {sender} give no secrets; they were not made by X25519")
        self._masking_keys[sender] = masking

    def _take_shares(self, sender: int, payload: bytes) -> None:
        entries = unpack(SEALED_ENTRY, payload[COMMITMENT_BYTES:])
        expected = self.session.graph[sender] & self._attendance.present[Kind.KEYS]
        if sorted(receiver for receiver, _ in entries) != sorted(expected):
            raise Refused(f"client {sender} did not seal one pair of shares for each of its neighbours")
        self._commitments[sender] = payload[:COMMITMENT_BYTES]
        for receiver, sealed in entries:
            self._sealed.setdefault(receiver, {})[sender] = sealed

    def _take_receipts(self, sender: int, payload: bytes) -> None:
        opened = from_bits(self.session, payload)
        if not {sender} <= opened <= self.session.holders(sender) & self._attendance.present[Kind.SHARES]:
            raise Refused(f"client {sender} claims shares that were never delivered to it")
        self._attendance.opened[sender] = opened

    def _take_masked(self, sender: int, payload: bytes) -> None:
        session, start = self.session, SIGNATURE_BYTES if self.session.consistency else 0
        words = self._sized(payload[start:], session.length * session.dtype.itemsize)
        if session.consistency:
            require_signed(session, sender, members_statement(session, self._members), payload[:start])
            self._vouched[sender] = payload[:start]
        self.masked[sender] = np.frombuffer(words, session.dtype.newbyteorder("<")).astype(session.dtype)

    def _take_consent(self, sender: int, payload: bytes) -> None:
        require_signed(self.session, sender, survivors_statement(self.session, self._members, self.masked), payload)
        self._consents[sender] = payload

    def _take_unmasking(self, sender: int, payload: bytes) -> None:
        entries = unpack(SHARE_ENTRY, payload)
        asked = sorted((owner, owner in self.masked) for owner in self._attendance.opened[sender] & self._members)
        if sorted((owner, bool(of_seed)) for owner, of_seed, _ in entries) != asked:
            raise Refused(f"client {sender} did not send the one share per neighbour that was asked for")
        for owner, _, share in entries:
            self._shares.setdefault(owner, {})[sender] = share

    @property
    def _members(self) -> set[int]:
        return self._attendance.members

    def _sized(self, payload: bytes, size: int) -> bytes:
        if len(payload) != size:
            raise Refused(f"a payload of {len(payload)} bytes came where {size} were expected")
        return payload
