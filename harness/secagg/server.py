"""The server of secure aggregation as it should be: it relays sealed shares and learns a sum.

``receive`` takes the messages of the round in any order; ``end_round`` closes it and gives the answers to send. What a
client sends that is not right is refused, and a client that sends nothing right counts as one that dropped out. After
the last round, ``total`` is the sum. What a curious server holds lies open in ``masked`` and ``total``.
"""

from collections.abc import Callable, Mapping, Set
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from harness.secagg import primitives
from harness.secagg.consistency import from_bits, members_statement, require_signed, survivors_statement, to_bits
from harness.secagg.primitives import commitment, expand, gives_secrets, public_bytes, signed_mask
from harness.secagg.session import Aborted, Refused, Session, connected
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
    rounds,
    unpack,
    write,
)

# Who stays when some shares did not open: one of the two, sender or receiver, is to blame, and nobody knows which.


def without_troublemakers(clients: Set[int], unopened: Mapping[int, Set[int]]) -> set[int]:
    """The clients without those who quarrel with several others.

    The client in most complaints, as sender or receiver, leaves until nobody is in more than one. Honest clients have
    no quarrel with each other, so one client that seals garbage, or says so of everybody, goes alone; what it can spoil
    by a single complaint is one share.

    Args:
        unopened: receiver -> the senders whose shares did not open.
    """
    quarrels: dict[int, set[int]] = {client: set() for client in clients}
    for receiver in clients:
        for sender in unopened[receiver] & clients:
            quarrels[receiver].add(sender)
            quarrels[sender].add(receiver)
    left = set(clients)
    while left:
        worst = max(sorted(left), key=lambda client: len(quarrels[client] & left))
        if len(quarrels[worst] & left) < 2:
            break
        left.remove(worst)
    return left


# Who is there in each round, and whether enough of them hold everybody's shares.


class Attendance:
    """The server's list.

    Attributes:
        rounds: the kinds of the clients' messages, in order.
        present: kind -> the clients whose message was taken.
        opened: holder -> the owners whose shares it has.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.rounds = session, rounds(session)
        self.present: dict[Kind, set[int]] = {kind: set() for kind in self.rounds}
        self.opened: dict[int, frozenset[int]] = {}

    @property
    def members(self) -> set[int]:
        """All with whom masks are shared, known from the end of RECEIPTS."""
        return self.present[Kind.RECEIPTS]

    def require_due(self, kind: Kind, client: int) -> None:
        """Raises Refused if the client has sent this message, or did not send the one before."""
        if client in self.present[kind]:
            raise Refused(f"client {client} has already sent its {kind.name}; the first message counts")
        if kind is not Kind.KEYS and client not in self.present[self.rounds[self.rounds.index(kind) - 1]]:
            raise Refused(f"client {client} dropped out in an earlier round and cannot come back")

    def settle_members(self) -> None:
        """Leaves out who sealed garbage, or says that others did."""
        delivered = self.present[Kind.SHARES]
        unopened = {
            client: (self.session.holders(client) & delivered) - opened for client, opened in self.opened.items()
        }
        self.present[Kind.RECEIPTS] = without_troublemakers(self.members, unopened)

    def require_enough(self, kind: Kind) -> None:
        """Raises Aborted unless everybody whose secrets may be needed has enough holders of its shares."""
        present, session = self.present[kind], self.session
        if len(present) < session.minimum_clients:
            _abort(f"{len(present)} of {session.clients} clients are left, {session.minimum_clients} are needed")
        # A sum needs the shares of all members, whether they stayed or not.
        for owner in sorted(present if kind in (Kind.KEYS, Kind.SHARES) else self.members):
            able = session.holders(owner) & present
            holders = sum(owner in self.opened.get(client, (owner,)) for client in able)
            if holders < session.threshold:
                _abort(f"client {owner} has {holders} holders of its shares left, {session.threshold} are needed")
        if kind is Kind.MASKED and not connected(session.graph, present):
            _abort("the clients left do not hang together, so their sum would fall apart into sums of parts")


def _abort(why: str) -> None:
    raise Aborted(f"secure aggregation ends without a sum: {why}")


# The last step: secrets from shares, masks from secrets, the sum from masked vectors.


def recover_total(
    session: Session,
    masked: Mapping[int, np.ndarray],
    members: Set[int],
    shares: Mapping[int, Mapping[int, bytes]],
    masking_keys: Mapping[int, bytes],
    commitments: Mapping[int, bytes],
) -> np.ndarray:
    """The sum of the survivors' vectors (length,) modulo 2^b.

    Args:
        masked: the survivors' masked vectors.
        members: all with whom masks were shared.
        shares: owner -> holder -> share; of the seed for survivors, of the masking key for the others.

    Raises:
        Aborted: the shares of a client do not give the secret that it announced.
    """
    total = np.sum(list(masked.values()), axis=0, dtype=session.dtype)
    for client in masked:
        right = partial(_is_committed, commitments[client], session.digest + client.to_bytes(4, "little"))
        seed = _secret(session, client, shares[client], right)
        total -= expand(seed, session.length, session.dtype)
    for dropped in sorted(members - masked.keys()):
        survivors = session.graph[dropped] & masked.keys()
        if not survivors:
            continue
        public = masking_keys[dropped]
        right = partial(_is_key_of, public)
        private = X25519PrivateKey.from_private_bytes(_secret(session, dropped, shares[dropped], right))
        for client in survivors:
            # The dropped client's half of the pair, added in its place.
            total += signed_mask(session, dropped, private, client, masking_keys[client])
    return primitives.reduced(session, total)


def _is_committed(promise: bytes, context: bytes, seed: bytes) -> bool:
    return commitment(seed, context) == promise


def _is_key_of(public: bytes, private: bytes) -> bool:
    return public_bytes(X25519PrivateKey.from_private_bytes(private)) == public


def _secret(session: Session, owner: int, shares: Mapping[int, bytes], right: Callable[[bytes], bool]) -> bytes:
    """The owner's secret from t of the shares; if it is not the announced one, from the next t around the circle."""
    holders = sorted(shares)
    for _ in range(1 if len(holders) == session.threshold else len(holders)):
        chosen, holders = holders[: session.threshold], holders[1:] + holders[:1]
        secret = primitives.combine({holder + 1: shares[holder] for holder in chosen})
        if secret is not None and right(secret):
            return secret
    raise Aborted(f"secure aggregation ends without a sum: the shares of client {owner} do not give its secret")


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
