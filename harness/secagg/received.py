"""What a client makes of the server's messages: the sets and secrets in them, or a refusal that changes nothing."""

import contextlib
from collections.abc import Mapping, Set

from harness.secagg.client_sets import bits_size, from_bits
from harness.secagg.consistency import members_statement, require_signed
from harness.secagg.errors import Refused
from harness.secagg.pair_masks import sealing_context
from harness.secagg.primitives import derive, unseal
from harness.secagg.session import Session
from harness.secagg.shamir import SHARE_BYTES
from harness.secagg.wire import KEYS_ENTRY, ROSTER_ENTRY, SEALED_ENTRY, SERVER, SIGNATURE_ENTRY, Kind, read, unpack


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
    """With whom masks are shared, in the whole session."""
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
