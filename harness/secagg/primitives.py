"""Key agreement, key derivation, masks from a key, and sealing of shares: all of it from ``cryptography``."""

import hashlib
import hmac

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from harness.secagg.errors import Refused

KEY_BYTES = 32
SEAL_BYTES = 16
# Every derived key seals one message or expands one mask, so the nonce has nothing to distinguish.
_NONCE, _COUNTER = bytes(12), bytes(16)


def public_bytes(private: X25519PrivateKey) -> bytes:
    """The public key (32 bytes) of a private one."""
    return private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The 32-byte secret that two parties share; keys are derived from it with :func:`derive`.

    Raises:
        Refused: the public key is no point that gives a secret.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Refused("a public key of the roster gives no secret; it was not made by X25519") from error


def gives_secrets(public: bytes) -> bool:
    """Whether a public key gives a secret to anybody; one of low order gives it to nobody."""
    try:
        agree(X25519PrivateKey.generate(), public)
    except Refused:
        return False
    return True


def derive(secret: bytes, context: bytes) -> bytes:
    """A 32-byte key from a shared secret, bound to ``context`` (purpose, session, who)."""
    return hmac.digest(secret, context, "sha256")


def expand(key: bytes, length: int, dtype: np.dtype) -> np.ndarray:
    """``length`` words of the AES-256-CTR keystream of ``key``, little endian, as uint32 or uint64."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(_COUNTER)).encryptor()
    return np.frombuffer(encryptor.update(bytes(length * dtype.itemsize)), dtype=dtype.newbyteorder("<"))


def commitment(seed: bytes, context: bytes) -> bytes:
    """A hash (32 bytes) that binds its maker to a random seed and tells nothing about it."""
    return hashlib.sha256(b"commitment" + context + seed).digest()


def seal(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Authenticated encryption, 16 bytes longer than the plaintext. A key seals once."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, plaintext, context)


def unseal(key: bytes, ciphertext: bytes, context: bytes) -> bytes:
    """The plaintext.

    Raises:
        Refused: it was changed, or sealed for somebody else.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, ciphertext, context)
    except InvalidTag as error:
        raise Refused("a sealed share does not open: it was changed or is meant for another client") from error
