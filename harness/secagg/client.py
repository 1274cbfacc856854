"""A client of secure aggregation (Bonawitz et al., CCS 2017, figure 4; neighbours as in Bell et al., CCS 2020).

Calls in this order, each the answer to the server's message: ``announce``, ``share``, ``acknowledge``, ``mask``,
``consent`` (with consistency) and ``unmask``. Why they reveal no vector: :mod:`harness.secagg.consistency`. A call that
raises leaves the client as it was. Each happens once: a replayed message is of the wrong round.
"""

import contextlib
from collections.abc import Mapping, Set

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from harness.secagg import primitives
from harness.secagg.consistency import (
    bits_size,
    from_bits,
    members_statement,
    require_certificate,
    require_signed,
    survivors_statement,
    to_bits,
)
from harness.secagg.primitives import (
    KEY_BYTES,
    SHARE_BYTES,
    agree,
    commitment,
    derive,
    expand,
    public_bytes,
    seal,
    sealing_context,
    signed_mask,
    unseal,
)
from harness.secagg.session import SYSTEM, Aborted, Entropy, Refused, Session, connected
from harness.secagg.wire import (
    KEYS_ENTRY,
    ROSTER_ENTRY,
    SEALED_ENTRY,
    SERVER,
    SHARE_ENTRY,
    SIGNATURE_ENTRY,
    Kind,
    pack,
    read,
    unpack,
    write,
)

# What a client makes of the server's messages: the sets and secrets in them, or a refusal that changes nothing.


def read_roster(session: Session, client: int, payload: bytes) -> dict[int, tuple[bytes, bytes]]:
    """By neighbour: its public keys, for sealing and for masks."""
    keys: dict[int, tuple[bytes, bytes]] = {}
    for (message,) in unpack(ROSTER_ENTRY, payload):
        # The neighbour's own signature: the server cannot put its keys in place of the neighbour's.
        other, announced = read(session, Kind.KEYS, SERVER, message)
        if other not in session.graph[client] or other in keys:
            raise Refused(f"the roster names client {other}, no neighbour of client {client} or twice")
        keys[other] = KEYS_ENTRY.unpack(announced)
    return keys


def open_shares(
    session: Session, client: int, sealing: Mapping[int, bytes], payload: bytes
) -> dict[int, tuple[bytes, bytes]]:
    """By owner: the shares of its masking key and of its self mask's seed. Those that do not open are left out.

    Args:
        sealing: by neighbour on the roster: the secret by which its shares are sealed.
    """
    sealed = dict(unpack(SEALED_ENTRY, payload))
    if len(sealed) * SEALED_ENTRY.size != len(payload) or not sealed.keys() <= sealing.keys():
        raise Refused("shares were delivered of a client who is not on the roster, or twice")
    held: dict[int, tuple[bytes, bytes]] = {}
    for other, ciphertext in sealed.items():
        context = sealing_context(session, other, client)
        # Only its sender can have sealed it wrongly, or the server; neither may stop the sum of the others.
        with contextlib.suppress(Refused):
            pair = unseal(derive(sealing[other], context), ciphertext, context)
            held[other] = (pair[:SHARE_BYTES], pair[SHARE_BYTES:])
    return held


def read_members(session: Session, client: int, roster: Set[int], payload: bytes) -> frozenset[int]:
    """Return the clients with whom masks are shared, in the whole session."""
    members = from_bits(session, payload)
    if client not in members:
        raise Refused(f"client {client} is not among the members, so it has no part in this sum")
    strangers = (members & session.graph[client]) - roster
    if strangers:
        raise Refused(f"client {min(strangers)} is among the members, but was not on the roster")
    return members


def read_survivors(session: Session, client: int, members: frozenset[int], payload: bytes) -> frozenset[int]:
    """Whose vectors are summed; with consistency, all neighbours among them have signed the same members."""
    size = bits_size(session)
    alive, signatures = from_bits(session, payload[:size]), unpack(SIGNATURE_ENTRY, payload[size:])
    if client not in alive:
        raise Refused(f"client {client} is not among the survivors, so it has no part in this sum")
    if not alive <= members:
        raise Refused(f"client {min(alive - members)} is among the survivors, but not among the members")
    signers = sorted(alive & session.graph[client]) if session.consistency else []
    if len(signatures) != len(signers):
        raise Refused(f"{len(signatures)} signatures came with the survivors; {len(signers)} neighbours must sign")
    statement = members_statement(session, members)
    for other, (signature,) in zip(signers, signatures, strict=True):
        require_signed(session, other, statement, signature)
    return alive


class Client:
    """One party that holds a vector and gives it away only as part of a sum."""

    def __init__(self, session: Session, index: int, identity: Ed25519PrivateKey, entropy: Entropy = SYSTEM) -> None:
        self.session, self.index = session, index
        self._identity, self._entropy = identity, entropy
        self._expected: Kind | None = Kind.KEYS
        self._sealing_key: X25519PrivateKey | None = None
        self._masking_key: X25519PrivateKey | None = None
        self._seed = b""
        self._sealing: dict[int, bytes] = {}  # by neighbour: the secret by which shares are sealed
        self._masking: dict[int, bytes] = {}  # by neighbour: its public masking key
        self._held: dict[int, tuple[bytes, bytes]] = {}  # shares by owner: of the masking key, of the self mask's seed
        self._members: frozenset[int] = frozenset()  # for whom the vector was masked
        self._alive: frozenset[int] = frozenset()  # to whose sum this client consented
        self._statement = b""  # what it signed then

    def announce(self) -> bytes:
        """Round 0: this client's public keys."""
        self._require(Kind.KEYS)
        self._sealing_key = X25519PrivateKey.from_private_bytes(self._entropy(KEY_BYTES))
        self._masking_key = X25519PrivateKey.from_private_bytes(self._entropy(KEY_BYTES))
        self._seed = self._entropy(KEY_BYTES)
        payload = pack(KEYS_ENTRY, [(public_bytes(self._sealing_key), public_bytes(self._masking_key))])
        self._expected = Kind.ROSTER
        return self._write(Kind.KEYS, payload)

    def share(self, roster: bytes) -> bytes:
        """Round 1: shares of both secrets, sealed for each neighbour that announced itself.

        Raises:
            Refused: the message is not the roster of this session, or not signed by the clients it names.
            Aborted: too few neighbours take part.
        """
        keys = read_roster(self.session, self.index, self._read(Kind.ROSTER, roster))
        assert self._sealing_key and self._masking_key  # drawn in round 0
        self._require_holders(len(keys) + 1)
        points = [other + 1 for other in (*keys, self.index)]
        threshold = self.session.threshold
        of_key = primitives.split(self._masking_key.private_bytes_raw(), threshold, points, self._entropy)
        of_seed = primitives.split(self._seed, threshold, points, self._entropy)
        rows = []
        sealing = {other: agree(self._sealing_key, public) for other, (public, _) in keys.items()}
        for other in keys:
            context = sealing_context(self.session, self.index, other)
            pair = of_key[other + 1] + of_seed[other + 1]
            rows.append((other, seal(derive(sealing[other], context), pair, context)))
        payload = commitment(self._seed, self._own_context()) + pack(SEALED_ENTRY, rows)
        self._sealing, self._masking = sealing, {other: public for other, (_, public) in keys.items()}
        self._held = {self.index: (of_key[self.index + 1], of_seed[self.index + 1])}
        self._expected = Kind.DELIVERY
        return self._write(Kind.SHARES, payload)

    def acknowledge(self, delivery: bytes) -> bytes:
        """Round 2: whose shares arrived and open. A neighbour that sealed garbage harms itself alone.

        Raises:
            Refused: the message is not the delivery of this session.
        """
        self._held |= open_shares(self.session, self.index, self._sealing, self._read(Kind.DELIVERY, delivery))
        self._expected = Kind.MEMBERS
        return self._write(Kind.RECEIPTS, to_bits(self.session, self._held))

    def mask(self, members: bytes, vector: np.ndarray) -> bytes:
        """Round 3: the vector under the self mask and one mask per neighbour among the members.

        Args:
            vector: (length,) of the session's word, elements below 2^b.

        Raises:
            Refused: the message is not the list of members, or the vector does not fit the session.
            Aborted: too few neighbours are left.
        """
        listed = read_members(self.session, self.index, self._masking.keys(), self._read(Kind.MEMBERS, members))
        assert self._masking_key  # drawn in round 0
        partners = listed & self.session.graph[self.index]
        self._require_holders(len(partners) + 1)
        masked = primitives.checked(self.session, vector) + expand(self._seed, self.session.length, self.session.dtype)
        for other in partners:
            masked += signed_mask(self.session, self.index, self._masking_key, other, self._masking[other])
        self._members = listed
        self._expected = Kind.SURVIVORS
        words = primitives.reduced(self.session, masked).astype(self.session.dtype.newbyteorder("<"), copy=False)
        vouched = self._identity.sign(members_statement(self.session, listed)) if self.session.consistency else b""
        return self._write(Kind.MASKED, vouched + words.tobytes())

    def consent(self, survivors: bytes) -> bytes:
        """Round 4, with consistency: the signature of the members and survivors that this client was told.

        Raises:
            Refused: the message is not the list of survivors, this client is not on it, or a neighbour on it has not
                signed the same members.
            Aborted: the sum would be of too few clients, or fall apart into sums that the server learns separately.
        """
        if not self.session.consistency:
            raise Refused("this session has no consistency check; its clients unmask at once")
        self._alive = self._agreed(survivors)
        self._statement = survivors_statement(self.session, self._members, self._alive)
        self._expected = Kind.CERTIFICATE
        return self._write(Kind.CONSENT, self._identity.sign(self._statement))

    def unmask(self, message: bytes) -> bytes:
        """The last round: for each neighbour one share, of the seed if its vector is summed, else of its masking key.

        Never both, and only once: afterwards this client has forgotten all its secrets.

        Args:
            message: with consistency the certificate that enough clients consented, else the list of survivors.

        Raises:
            Refused: it is not that message, or what ``consent`` refuses.
            Aborted: as ``consent``.
        """
        if self.session.consistency:
            require_certificate(self.session, self._statement, self._read(Kind.CERTIFICATE, message))
        else:
            self._alive = self._agreed(message)
        rows = [
            (owner, owner in self._alive, pair[owner in self._alive])
            for owner, pair in self._held.items()
            if owner in self._members
        ]
        self._forget()
        return self._write(Kind.UNMASKING, pack(SHARE_ENTRY, rows))

    def _agreed(self, survivors: bytes) -> frozenset[int]:
        alive = read_survivors(self.session, self.index, self._members, self._read(Kind.SURVIVORS, survivors))
        if len(alive) < self.session.minimum_clients:
            self._abort(f"a sum of {len(alive)} clients; this session promises at least {self.session.minimum_clients}")
        if not connected(self.session.graph, alive):
            self._abort("the clients left do not hang together, so the server would learn the sums of parts")
        self._require_holders(len(alive & self.session.holders(self.index)))
        return alive

    def _read(self, kind: Kind, message: bytes) -> bytes:
        self._require(kind)
        sender, payload = read(self.session, kind, self.index, message)
        if sender != SERVER:
            raise Refused(f"client {sender} signed a message that only the server sends")
        return payload

    def _write(self, kind: Kind, payload: bytes) -> bytes:
        return write(self.session, kind, self.index, SERVER, payload, self._identity)

    def _own_context(self) -> bytes:
        return self.session.digest + self.index.to_bytes(4, "little")

    def _require(self, kind: Kind) -> None:
        if self._expected is not kind:
            waits = self._expected.name if self._expected else "nothing more"
            raise Refused(f"client {self.index} waits for {waits}, not {kind.name}")

    def _require_holders(self, present: int) -> None:
        if present < self.session.threshold:
            self._abort(f"{present} holders of its shares take part; {self.session.threshold} are needed")

    def _abort(self, why: str) -> None:
        self._forget()
        raise Aborted(f"client {self.index} leaves and reveals nothing: {why}")

    def _forget(self) -> None:
        self._expected = None
        self._sealing_key = self._masking_key = None
        self._seed, self._sealing, self._masking, self._held = b"", {}, {}, {}
        self._members = self._alive = frozenset()
        self._statement = b""
