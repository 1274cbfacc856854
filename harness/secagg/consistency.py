"""Argument that a server that tells clients different things learns no more than one that does not.

Sources: the consistency check of Bonawitz et al., CCS 2017 (figure 4, active adversaries), and the sparse graph of
Bell et al., CCS 2020. There is one difference: signatures are counted over all N clients and not over a neighbourhood,
so the argument is the same for every graph and degree.

Two sets decide what a client reveals: the members M, with whom masks are shared, and the survivors U of them, whose
vectors are summed. An honest client

1. masks for exactly its neighbours in one M, and signs that M beside its masked vector;
2. signs one pair (M, U), if it is in U, U hangs together in the graph, and every neighbour in U has signed M;
3. reveals shares for the pair it signed alone, and only if q clients (``quorum``) have signed it: of the self mask's
   seed for neighbours in U, of the masking key for those in M and not in U.

Let C of the N clients help the server. Then q is the least number above (N + C) / 2, at least q must stay
(``minimum_clients``), and t > C; a session of other settings is refused.

* **One pair.** Any two sets of q clients share 2q - N > C of them, so an honest one; it signs once. So all honest
  clients reveal for the same (M, U), and of an honest client's two secrets one has at most C < t shares in the server's
  hands. Neighbourhoods alone would need 2t > degree + 1 + C, and that is not enough: see the next point.
* **The masks that count.** A client in U whose seed is revealed has, as t > C, an honest holder, who saw its signature
  of M. So it masked for all its neighbours in M, of whom those in U keep their masking keys. Without this, a server
  gives one client a short list of neighbours and then lets all on that list drop out. In a k-regular graph every
  survivor may agree on that: with 50 clients of 24 neighbours and t = 8 it shows the vector.
* **Who is not in U** keeps its self mask, and its masked vector with it.
* **Parts.** What is left of the vectors in U are the pair masks within U, which cancel only in the sum of all, as U
  hangs together. If C clients give their masks away, the others must hang together without them: always so in the
  complete graph, and in the k-regular one (which is k-connected) if N - ``minimum_clients`` + C < degree.
"""

from collections.abc import Iterable

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from harness.secagg.session import Refused, Session
from harness.secagg.wire import CONSENT_ENTRY, unpack

# Sets of clients as bytes: one bit per client, the lowest first.


def to_bits(session: Session, clients: Iterable[int]) -> bytes:
    """(N + 7) // 8 bytes."""
    bits = np.zeros(session.clients, dtype=np.uint8)
    bits[list(clients)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def from_bits(session: Session, payload: bytes) -> frozenset[int]:
    """The clients of a payload.

    Raises:
        Refused: it does not have one bit per client of the session.
    """
    found = np.flatnonzero(np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little"))
    if len(payload) != bits_size(session) or (found.size and found[-1] >= session.clients):
        raise Refused("a list of clients does not have one bit per client")
    return frozenset(found.tolist())


def bits_size(session: Session) -> int:
    """Bytes of a set."""
    return (session.clients + 7) // 8


def members_statement(session: Session, members: Iterable[int]) -> bytes:
    """Return what a client signs with its masked vector: for whom it masked."""
    return session.digest + b"members" + to_bits(session, members)


def survivors_statement(session: Session, members: Iterable[int], survivors: Iterable[int]) -> bytes:
    """Return what a client signs before it reveals shares: for whom masks were made, and whose vectors are summed."""
    return session.digest + b"survivors" + to_bits(session, members) + to_bits(session, survivors)


def require_signed(session: Session, client: int, statement: bytes, signature: bytes) -> None:
    """Raises Refused unless the client signed the statement."""
    try:
        Ed25519PublicKey.from_public_bytes(session.client_keys[client]).verify(signature, statement)
    except (InvalidSignature, IndexError) as error:
        raise Refused(f"client {client} has not signed the sets of clients that are shown for it") from error


def require_certificate(session: Session, statement: bytes, payload: bytes) -> None:
    """Raises Refused unless a payload of CONSENT_ENTRY rows holds enough clients' signatures of the statement."""
    signatures = dict(unpack(CONSENT_ENTRY, payload))
    if len(signatures) < session.quorum:
        raise Refused(f"{len(signatures)} clients consented to these survivors; {session.quorum} are needed")
    for client, signature in signatures.items():
        require_signed(session, client, statement, signature)
