"""Building blocks of the protocol: keys and encryption, masks of pairs, the ring of integers, shares of secrets."""

import hashlib
import hmac
import operator
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from harness.secagg.session import Entropy, Refused, Session

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
    """Return whether a public key gives a secret to anybody; one of low order gives it to nobody."""
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


# The secrets of a pair of clients, derived alike on both sides and bound to the session, the purpose and the pair.


def sealing_context(session: Session, sender: int, receiver: int) -> bytes:
    """Return what a sealed pair of shares is bound to; each direction has a key of its own."""
    return b"shares" + session.digest + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")


def signed_mask(session: Session, client: int, private: X25519PrivateKey, other: int, public: bytes) -> np.ndarray:
    """Return what ``client`` adds for its pair with ``other``: the two masks of a pair cancel in the sum.

    Args:
        private: the masking key of ``client``.
        public: the masking key of ``other``.
    """
    low, high = sorted((client, other))
    context = b"mask" + session.digest + low.to_bytes(4, "little") + high.to_bytes(4, "little")
    mask = expand(derive(agree(private, public), context), session.length, session.dtype)
    return mask if client == low else -mask


# Adding in the ring of integers modulo 2^b, in words that wrap around.


def checked(session: Session, vector: np.ndarray) -> np.ndarray:
    """The client's vector, if it has the session's length and word and all of it lies in the ring.

    Raises:
        Refused: it has not; nothing was sent.
    """
    if not isinstance(vector, np.ndarray) or vector.shape != (session.length,) or vector.dtype != session.dtype:
        found = f"{vector.dtype} {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
        raise Refused(f"a vector of {session.dtype} ({session.length},) was expected, not {found}")
    if vector.size and vector.max() > session.largest:
        raise Refused(f"the vector has elements of 2^{session.bits} and more; encode it in the ring first")
    return vector


def reduced(session: Session, words: np.ndarray) -> np.ndarray:
    """Words modulo 2^b; exact after any number of wrapped additions because 2^b divides the word's range."""
    return words & session.largest


# Shamir's secret sharing (Shamir, How to share a secret, 1979) of 32-byte secrets.
#
# The field is that of the prime 2^256 + 297, the smallest one above all 32-byte secrets, so a secret needs no limbs.

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, points: Iterable[int], entropy: Entropy) -> dict[int, bytes]:
    """One share (33 bytes) per point, of which any ``threshold`` give the secret and fewer say nothing about it.

    Args:
        secret: 32 bytes.
        points: distinct positive numbers, the places at which the polynomial is read.
    """
    # 48 bytes modulo the prime: further from uniform by less than 2^-127.
    drawn = entropy(48 * (threshold - 1))
    higher = [int.from_bytes(drawn[start : start + 48], "little") for start in range(0, len(drawn), 48)]
    coefficients = [int.from_bytes(secret, "little"), *(value % PRIME for value in higher)]
    return {point: _evaluate(coefficients, point).to_bytes(SHARE_BYTES, "little") for point in points}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret (32 bytes) from exactly ``threshold`` shares by point; None if they belong to no 32-byte secret."""
    weights = _weights_at_zero(tuple(shares))
    values = [int.from_bytes(share, "little") for share in shares.values()]
    secret = sum(map(operator.mul, weights, values)) % PRIME
    return secret.to_bytes(SECRET_BYTES, "little") if secret < 2**256 else None


def _evaluate(coefficients: list[int], point: int) -> int:
    return sum(map(operator.mul, coefficients, _powers(point, len(coefficients)))) % PRIME


@lru_cache(maxsize=4096)
def _powers(point: int, count: int) -> list[int]:
    return [pow(point, exponent, PRIME) for exponent in range(count)]


@lru_cache(maxsize=256)
def _weights_at_zero(points: tuple[int, ...]) -> list[int]:
    """Lagrange's weights of the polynomial's value at zero."""
    weights = []
    for point in points:
        numerator = denominator = 1
        for other in points:
            if other != point:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - point) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights
