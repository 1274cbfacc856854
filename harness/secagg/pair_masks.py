"""The secrets of a pair of clients, derived alike on both sides and bound to the session, the purpose and the pair."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from harness.secagg.primitives import agree, derive, expand
from harness.secagg.session import Session


def sealing_context(session: Session, sender: int, receiver: int) -> bytes:
    """What a sealed pair of shares is bound to; each direction has a key of its own."""
    return b"shares" + session.digest + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")


def signed_mask(session: Session, client: int, private: X25519PrivateKey, other: int, public: bytes) -> np.ndarray:
    """What ``client`` adds for its pair with ``other``: the two masks of a pair cancel in the sum.

    Args:
        private: the masking key of ``client``.
        public: the masking key of ``other``.
    """
    low, high = sorted((client, other))
    context = b"mask" + session.digest + low.to_bytes(4, "little") + high.to_bytes(4, "little")
    mask = expand(derive(agree(private, public), context), session.length, session.dtype)
    return mask if client == low else -mask
