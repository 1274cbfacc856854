"""Adding in the ring of integers modulo 2^b, in words that wrap around."""

import numpy as np

from harness.secagg.errors import Refused
from harness.secagg.session import Session


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
