"""Process-wide settings of the libraries underneath; read when they are loaded, so set before torch is imported.

A value set from outside wins. None of them changes a result, except that strict MKL makes results repeat.
"""

import ctypes
import logging
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
_too_late = False


def tune() -> None:
    """Sets thread waiting, MKL reproducibility and memory reuse."""
    global _too_late
    # MKL reads its settings at its first product, which torch may have asked for by now.
    _too_late = "torch" in sys.modules and "MKL_CBWR" not in os.environ
    # How long OpenMP threads spin before they sleep. The default (for ever, in effect) makes a machine that does
    # anything else up to a hundred times slower; not spinning at all halves the speed of an idle one.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    # MKL picks kernels by the alignment of its operands, so a row's last bits would depend on its place in a chunk.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    if sys.platform == "linux" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        _keep_freed_memory()


def say_if_too_late() -> None:
    """Before results are computed, once: says that the settings may have come too late for these."""
    global _too_late
    if _too_late:
        logging.getLogger(__name__).warning(
            "torch was imported before harness: if it has computed already, results repeat only closely, and threads "
            "wait as they did; import harness first, or set MKL_CBWR=AUTO,STRICT and GOMP_SPINCOUNT=5000"
        )
    _too_late = False


def _keep_freed_memory() -> None:
    """Lets glibc reuse large freed blocks: asking the system for fresh pages at every operation costs a fifth."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
