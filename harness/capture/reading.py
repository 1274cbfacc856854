"""Reads a capture, whoever wrote it: every file is checked, nothing in it is executed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.capture.record import BEFORE, FACTS, SENT, TRUTH, CaptureRecord, Sent
from harness.errors import UsageError
from harness.storage.files import MOST_OF_A_DOCUMENT, Absent, read_bytes, sha256
from harness.storage.stored import Damaged, parse_arrays, parse_json, read_stored

_PICKLED = ("pt", "pth", "pkl", "bin", "ckpt")
_MEND = "write it with harness.capture, or numpy.savez with one array per tensor of the state_dict"


@dataclass(frozen=True)
class Capture:
    """What one client started from and sent.

    Attributes:
        before, moved: finite arrays by the names of the ``state_dict``; ``kind`` says what ``moved`` is.
        truth: images (n, C, H, W) and labels (n,) as they stand in the file; None where it was not kept.
        digest: of the files, in hexadecimal.
    """

    folder: Path
    record: CaptureRecord
    before: Mapping[str, np.ndarray]
    moved: Mapping[str, np.ndarray]
    kind: Sent
    truth: tuple[np.ndarray, np.ndarray] | None
    digest: str


def read_capture(folder: Path, truth: Path | None = None) -> Capture:
    """A capture's folder.

    Args:
        truth: an ``.npz`` file of ``images`` and ``labels`` instead of the folder's own.

    Raises:
        UsageError: a file is missing, damaged, or holds what it should not; one line that names file and mend.
    """
    facts = folder / FACTS
    try:
        record = read_stored(facts, CaptureRecord, parse_json, "write it again", MOST_OF_A_DOCUMENT)
    except Absent as problem:
        raise UsageError(f"{str(folder)!r} is no capture (it has no {FACTS}); {_MEND}") from problem
    present: list[Sent] = [kind for kind in SENT if (folder / f"{kind}.npz").exists()]
    if len(present) != 1:
        found = " and ".join(present) or "none"
        raise UsageError(
            f"capture {str(folder)!r} must hold one of {', '.join(SENT)} as .npz, it has {found}{_hint(folder)}"
        )
    before, moved = folder / f"{BEFORE}.npz", folder / f"{present[0]}.npz"
    own = truth or folder / f"{TRUTH}.npz"
    known = _truth(own) if truth or own.exists() else None
    digest = "-".join(sha256(path)[:16] for path in (facts, before, moved))
    return Capture(folder, record, _arrays(before), _arrays(moved), present[0], known, digest)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Finite numbers by name."""
    found = _parsed(path)
    for name, array in found.items():
        if array.dtype.kind not in "fiub":
            raise UsageError(f"{str(path)!r}: {name[:80]!r} holds {array.dtype}, no numbers; {_MEND}")
        if not np.isfinite(array).all():
            raise UsageError(
                f"{str(path)!r}: {name[:80]!r} holds NaN or infinity: the client's training diverged, and nothing "
                "can be read from it; capture another round"
            )
    return found


def _truth(path: Path) -> tuple[np.ndarray, np.ndarray]:
    found = _parsed(path, ("images", "labels"))
    return found["images"], found["labels"]


def _parsed(path: Path, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    try:
        return parse_arrays(read_bytes(path), names)
    except Absent as problem:
        raise UsageError(f"{str(path)!r} does not exist{_hint(path.parent)}; {_MEND}") from problem
    except Damaged as problem:
        raise UsageError(f"{str(path)!r} {problem}; {_MEND}") from problem


def _hint(folder: Path) -> str:
    """What is said of a pickled file in its place: it is never loaded."""
    pickled = sorted(path.name for ending in _PICKLED for path in folder.glob(f"*.{ending}"))
    return f"; {pickled[0]!r} there is pickled and not read: convert it where you trust it" if pickled else ""
