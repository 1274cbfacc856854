"""Messages as bytes: a header, a payload of fixed-size entries, a signature. Nothing is ever unpickled.

    magic 4 | kind 1 | session 16 | sender 4 | receiver 4 | payload length 4 | payload | Ed25519 signature 64

All numbers are little endian. The signature covers the session's digest, the header and the payload, so a changed
byte, another session's message and one made under other settings are all refused.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from harness.secagg.primitives import KEY_BYTES, SEAL_BYTES, SHARE_BYTES
from harness.secagg.session import Refused, Session

SERVER = 0xFFFFFFFF
_MAGIC = b"SAG2"
_HEADER = struct.Struct("<4sB16sIII")
SIGNATURE_BYTES = 64


class Kind(IntEnum):
    """Kinds of messages, in the order of the protocol: a client's, then the server's answer."""

    KEYS = 1
    ROSTER = 2
    SHARES = 3
    DELIVERY = 4
    RECEIPTS = 5
    MEMBERS = 6
    MASKED = 7
    SURVIVORS = 8
    CONSENT = 9
    CERTIFICATE = 10
    UNMASKING = 11


def rounds(session: Session) -> tuple[Kind, ...]:
    """The clients' messages of a session in their order; the server answers each but the last by the next kind."""
    consent = (Kind.CONSENT,) if session.consistency else ()
    return (Kind.KEYS, Kind.SHARES, Kind.RECEIPTS, Kind.MASKED, *consent, Kind.UNMASKING)


# Entries of the payloads. KEYS is one entry, CONSENT one signature, RECEIPTS and MEMBERS one bit per client. With
# consistency, MASKED begins with the signature of the members, before plain words, and SURVIVORS is one bit per client
# and the signatures of the members by the receiver's neighbours among the survivors.
KEYS_ENTRY = struct.Struct(f"<{KEY_BYTES}s{KEY_BYTES}s")  # public keys: for sealing shares, for masks
ROSTER_ENTRY = struct.Struct(f"<{_HEADER.size + KEYS_ENTRY.size + SIGNATURE_BYTES}s")  # a client's whole KEYS message
SEALED_ENTRY = struct.Struct(f"<I{2 * SHARE_BYTES + SEAL_BYTES}s")  # the other client, the sealed pair of shares
SHARE_ENTRY = struct.Struct(f"<IB{SHARE_BYTES}s")  # whose secret, 1 if it is the self mask's seed, the share
SIGNATURE_ENTRY = struct.Struct(f"{SIGNATURE_BYTES}s")  # of SURVIVORS: by one neighbour, in increasing order
CONSENT_ENTRY = struct.Struct(f"<I{SIGNATURE_BYTES}s")  # of a CERTIFICATE: a client, its signature
COMMITMENT_BYTES = 32  # SHARES begins with the commitment to the self mask's seed


def pack(entry: struct.Struct, rows: Iterable[tuple[Any, ...]]) -> bytes:
    """A payload of entries."""
    return b"".join(entry.pack(*row) for row in rows)


def unpack(entry: struct.Struct, payload: bytes) -> list[tuple[Any, ...]]:
    """The entries of a payload.

    Raises:
        Refused: it does not hold a whole number of them.
    """
    if len(payload) % entry.size:
        raise Refused(f"a payload of {len(payload)} bytes does not hold entries of {entry.size} bytes")
    return list(entry.iter_unpack(payload))


def write(
    session: Session, kind: Kind, sender: int, receiver: int, payload: bytes, identity: Ed25519PrivateKey
) -> bytes:
    """A signed message."""
    message = _HEADER.pack(_MAGIC, kind, session.identifier, sender, receiver, len(payload)) + payload
    return message + identity.sign(session.digest + message)


def read(session: Session, kind: Kind, receiver: int, message: bytes) -> tuple[int, bytes]:
    """Sender and payload of a message that is what it should be.

    Raises:
        Refused: no bytes, damaged, forged, of another session or round, or meant for somebody else.
    """
    if not isinstance(message, bytes):
        raise Refused(f"a message is bytes, not {type(message).__name__}")
    if len(message) < _HEADER.size + SIGNATURE_BYTES:
        raise Refused(f"a message of {len(message)} bytes is too short")
    signed, signature = message[:-SIGNATURE_BYTES], message[-SIGNATURE_BYTES:]
    magic, found, identifier, sender, addressee, length = _HEADER.unpack_from(signed)
    if magic != _MAGIC or length != len(signed) - _HEADER.size:
        raise Refused("a message is damaged or of another protocol version")
    if identifier != session.identifier:
        raise Refused("a message belongs to another session")
    if found != kind:
        raise Refused(f"a message of kind {_name(found)} came when {kind.name} was expected")
    if addressee != receiver:
        raise Refused(f"a message for {_party(addressee)} came to {_party(receiver)}")
    _verify(session, sender, signed, signature)
    return sender, signed[_HEADER.size :]


def _verify(session: Session, sender: int, signed: bytes, signature: bytes) -> None:
    if sender != SERVER and sender >= session.clients:
        raise Refused(f"a message names {_party(sender)} as its sender, who has no part in this session")
    key = session.server_key if sender == SERVER else session.client_keys[sender]
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, session.digest + signed)
    except InvalidSignature as error:
        raise Refused(f"the signature of {_party(sender)} does not fit its message: changed, or forged") from error


def _name(kind: int) -> str:
    return Kind(kind).name if kind in list(Kind) else str(kind)


def _party(party: int) -> str:
    return "the server" if party == SERVER else f"client {party}"
