"""A server that tells each client what it likes, and computes a vector from what they give away."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from harness.secagg import Aborted, Client, Parties, Refused, seeded_entropy
from harness.secagg.consistency import to_bits
from harness.secagg.primitives import combine, expand, signed_mask
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

Told = Mapping[int, frozenset[int]]
VICTIM = 0


@pytest.fixture
def lying_server() -> type["LyingServer"]:
    return LyingServer


@dataclass
class LyingServer:
    """Relays keys and shares as it should, then tells each client members and survivors of its own."""

    parties: Parties
    members: Told
    survivors: Told
    shares: dict[tuple[int, bool], dict[int, bytes]] = field(default_factory=dict)

    def attack(self) -> np.ndarray | None:
        """The victim's vector, if it can be computed from what the clients gave away."""
        session = self.parties.session
        clients = [
            Client(session, index, key, seeded_entropy(index))
            for index, key in enumerate(self.parties.client_identities)
        ]
        announced = {client.index: client.announce() for client in clients}
        keys = {index: KEYS_ENTRY.unpack(self.read(Kind.KEYS, message)) for index, message in announced.items()}
        sealed: dict[int, list[tuple[int, bytes]]] = {index: [] for index in announced}
        for client in clients:
            roster = pack(ROSTER_ENTRY, [(announced[other],) for other in sorted(session.graph[client.index])])
            payload = self.read(Kind.SHARES, client.share(self.write(Kind.ROSTER, client.index, roster)))
            for receiver, ciphertext in unpack(SEALED_ENTRY, payload[COMMITMENT_BYTES:]):
                sealed[receiver].append((client.index, ciphertext))
        masked: dict[int, bytes] = {}
        for client in clients:
            client.acknowledge(self.write(Kind.DELIVERY, client.index, pack(SEALED_ENTRY, sealed[client.index])))
            told = self.write(Kind.MEMBERS, client.index, to_bits(session, self.members[client.index]))
            vector = np.full(session.length, 100 + client.index, dtype=np.uint32)
            masked[client.index] = self.read(Kind.MASKED, client.mask(told, vector))
        self.unmask(clients, masked)
        words = np.frombuffer(masked[VICTIM][SIGNATURE_BYTES * session.consistency :], np.uint32)
        return self.recovered(words, {index: pair[1] for index, pair in keys.items()})

    def unmask(self, clients: list[Client], masked: dict[int, bytes]) -> None:
        """Asks every client; one that refuses or leaves has given nothing."""
        last = self.consented(clients, masked) if self.parties.session.consistency else self.lists(clients, masked)
        for client in clients:
            for message in last.get(client.index, []):
                with contextlib.suppress(Refused, Aborted):
                    payload = self.read(Kind.UNMASKING, client.unmask(message))
                    for owner, of_seed, share in unpack(SHARE_ENTRY, payload):
                        self.shares.setdefault((owner, bool(of_seed)), {})[client.index + 1] = share

    def lists(self, clients: list[Client], masked: dict[int, bytes]) -> dict[int, list[bytes]]:
        session, made = self.parties.session, {}
        for client in clients:
            alive = self.survivors[client.index]
            beside = sorted(alive & session.graph[client.index]) if session.consistency else []
            payload = to_bits(session, alive) + b"".join(masked[other][:SIGNATURE_BYTES] for other in beside)
            made[client.index] = [self.write(Kind.SURVIVORS, client.index, payload)]
        return made

    def consented(self, clients: list[Client], masked: dict[int, bytes]) -> dict[int, list[bytes]]:
        """Certificates: of those who signed the same; and of all, the same first, to reach the number."""
        consents, made, lists = {}, {}, self.lists(clients, masked)
        for client in clients:
            with contextlib.suppress(Refused, Aborted):
                consents[client.index] = self.read(Kind.CONSENT, client.consent(lists[client.index][0]))
        for index in consents:
            same = [(other, consents[other]) for other in consents if self.told(other) == self.told(index)]
            padded = (same + list(consents.items()))[: self.parties.session.quorum]
            made[index] = [self.write(Kind.CERTIFICATE, index, pack(CONSENT_ENTRY, rows)) for rows in (same, padded)]
        return made

    def told(self, client: int) -> tuple[frozenset[int], frozenset[int]]:
        return self.members[client], self.survivors[client]

    def recovered(self, words: np.ndarray, masking: Mapping[int, bytes]) -> np.ndarray | None:
        """Takes off the self mask and every pair mask, each by the key of either side."""
        session, seed, own = self.parties.session, self.secret(VICTIM, True), self.secret(VICTIM, False)
        if seed is None:
            return None
        vector = words - expand(seed, session.length, session.dtype)
        for other in session.graph[VICTIM] & self.members[VICTIM]:
            key = self.secret(other, False)
            if own is not None:
                private = X25519PrivateKey.from_private_bytes(own)
                vector -= signed_mask(session, VICTIM, private, other, masking[other])
            elif key is not None:
                vector += signed_mask(session, other, X25519PrivateKey.from_private_bytes(key), VICTIM, masking[VICTIM])
            else:
                return None
        return vector

    def secret(self, owner: int, of_seed: bool) -> bytes | None:
        shares, threshold = self.shares.get((owner, of_seed), {}), self.parties.session.threshold
        return combine(dict(list(shares.items())[:threshold])) if len(shares) >= threshold else None

    def read(self, kind: Kind, message: bytes) -> bytes:
        return read(self.parties.session, kind, SERVER, message)[1]

    def write(self, kind: Kind, client: int, payload: bytes) -> bytes:
        return write(self.parties.session, kind, SERVER, client, payload, self.parties.server_identity)
