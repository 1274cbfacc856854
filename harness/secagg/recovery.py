"""The last step: secrets from shares, masks from secrets, the sum from masked vectors."""

from collections.abc import Callable, Mapping, Set
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from harness.secagg import ring, shamir
from harness.secagg.errors import Aborted
from harness.secagg.pair_masks import signed_mask
from harness.secagg.primitives import commitment, expand, public_bytes
from harness.secagg.session import Session


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
    return ring.reduced(session, total)


def _is_committed(promise: bytes, context: bytes, seed: bytes) -> bool:
    return commitment(seed, context) == promise


def _is_key_of(public: bytes, private: bytes) -> bool:
    return public_bytes(X25519PrivateKey.from_private_bytes(private)) == public


def _secret(session: Session, owner: int, shares: Mapping[int, bytes], right: Callable[[bytes], bool]) -> bytes:
    """The owner's secret from t of the shares; if it is not the announced one, from the next t around the circle."""
    holders = sorted(shares)
    for _ in range(1 if len(holders) == session.threshold else len(holders)):
        chosen, holders = holders[: session.threshold], holders[1:] + holders[:1]
        secret = shamir.combine({holder + 1: shares[holder] for holder in chosen})
        if secret is not None and right(secret):
            return secret
    raise Aborted(f"secure aggregation ends without a sum: the shares of client {owner} do not give its secret")
