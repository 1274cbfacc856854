"""A client of secure aggregation (Bonawitz et al., CCS 2017, figure 4; neighbours as in Bell et al., CCS 2020).

Four calls in this order, each the answer to the server's message: ``announce``, ``share``, ``mask``, ``unmask``.
A call that raises leaves the client as it was. Each happens once: a replayed message is of the wrong round.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from harness.secagg import ring, shamir
from harness.secagg.entropy import SYSTEM, Entropy
from harness.secagg.errors import Aborted, Refused
from harness.secagg.graph import connected
from harness.secagg.pair_masks import sealing_context, signed_mask
from harness.secagg.primitives import KEY_BYTES, agree, commitment, derive, expand, public_bytes, seal, unseal
from harness.secagg.session import Session
from harness.secagg.shamir import SHARE_BYTES
from harness.secagg.wire import (
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
        keys = self._read_roster(self._read(Kind.ROSTER, roster))
        self._require_holders(len(keys) + 1)
        points = [other + 1 for other in (*keys, self.index)]
        threshold = self.session.threshold
        of_key = shamir.split(self._masking_key.private_bytes_raw(), threshold, points, self._entropy)
        of_seed = shamir.split(self._seed, threshold, points, self._entropy)
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

    def mask(self, delivery: bytes, vector: np.ndarray) -> bytes:
        """Round 2: the vector under the self mask and one mask per neighbour that shared its secrets.

        Args:
            vector: (length,) of the session's word, elements below 2^b.

        Raises:
            Refused: the message is not the delivery of this session, or the vector does not fit it.
            Aborted: too few neighbours are left.
        """
        received = self._open_shares(self._read(Kind.DELIVERY, delivery))
        self._require_holders(len(received) + 1)
        masked = ring.checked(self.session, vector) + expand(self._seed, self.session.length, self.session.dtype)
        for other in received:
            masked += signed_mask(self.session, self.index, self._masking_key, other, self._masking[other])
        self._held |= received
        self._expected = Kind.SURVIVORS
        words = ring.reduced(self.session, masked).astype(self.session.dtype.newbyteorder("<"), copy=False)
        return self._write(Kind.MASKED, words.tobytes())

    def unmask(self, survivors: bytes) -> bytes:
        """Round 3: for each neighbour one share, of the seed if its vector arrived, else of its masking key.

        Never both, and only once: afterwards this client has forgotten all its secrets.

        Raises:
            Refused: the message is not the list of survivors, or this client is not on it.
            Aborted: the sum would be of too few clients, or fall apart into sums that the server learns separately.
        """
        alive = self._read_survivors(self._read(Kind.SURVIVORS, survivors))
        if len(alive) < self.session.minimum_clients:
            self._abort(f"a sum of {len(alive)} clients; this session promises at least {self.session.minimum_clients}")
        if not connected(self.session.graph, alive):
            self._abort("the clients left do not hang together, so the server would learn the sums of parts")
        self._require_holders(len(alive & self._held.keys()))
        rows = [(owner, owner in alive, pair[owner in alive]) for owner, pair in self._held.items()]
        self._forget()
        return self._write(Kind.UNMASKING, pack(SHARE_ENTRY, rows))

    def _read_roster(self, payload: bytes) -> dict[int, tuple[bytes, bytes]]:
        keys: dict[int, tuple[bytes, bytes]] = {}
        for (message,) in unpack(ROSTER_ENTRY, payload):
            # The neighbour's own signature: the server cannot put its keys in place of the neighbour's.
            other, announced = read(self.session, Kind.KEYS, SERVER, message)
            if other not in self.session.graph[self.index] or other in keys:
                raise Refused(f"the roster names client {other}, no neighbour of client {self.index} or twice")
            keys[other] = KEYS_ENTRY.unpack(announced)
        return keys

    def _open_shares(self, payload: bytes) -> dict[int, tuple[bytes, bytes]]:
        held: dict[int, tuple[bytes, bytes]] = {}
        for other, sealed in unpack(SEALED_ENTRY, payload):
            if other not in self._sealing or other in held:
                raise Refused(f"shares of client {other} were delivered, who is not on the roster or came twice")
            context = sealing_context(self.session, other, self.index)
            pair = unseal(derive(self._sealing[other], context), sealed, context)
            held[other] = (pair[:SHARE_BYTES], pair[SHARE_BYTES:])
        return held

    def _read_survivors(self, payload: bytes) -> set[int]:
        bits = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little")
        alive = set(np.flatnonzero(bits).tolist())
        if len(payload) != (self.session.clients + 7) // 8 or max(alive, default=0) >= self.session.clients:
            raise Refused("the list of survivors does not have one bit per client")
        if self.index not in alive:
            raise Refused(f"client {self.index} is not among the survivors, so it has no part in this sum")
        strangers = (alive & self.session.graph[self.index]) - self._held.keys()
        if strangers:
            raise Refused(f"client {min(strangers)} is among the survivors, but its shares were never delivered")
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
