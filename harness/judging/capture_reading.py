"""Reads a capture, whoever wrote it: every file is checked, nothing in it is executed."""

from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UsageError
from harness.judging.capture_record import BEFORE, FACTS, SENT, TRUTH, CaptureRecord, Sent
from harness.results.arrays import ENDINGS, MEND, StoredArrays, pickled_beside
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, sha256
from harness.results.stored import parse_json, read_stored


@dataclass(frozen=True)
class Capture:
    """What one client started from and sent.

    Attributes:
        before, moved: arrays by the names of the ``state_dict``, read when asked for; ``kind`` says what ``moved`` is.
        truth: ``images`` (n, C, H, W) and ``labels`` (n,) as they stand in the file; None where it was not kept.
        digest: of the files, in hexadecimal.
    """

    folder: Path
    record: CaptureRecord
    before: StoredArrays
    moved: StoredArrays
    kind: Sent
    truth: StoredArrays | None
    digest: str


def read_capture(folder: Path, truth: Path | None = None) -> Capture:
    """A capture's folder.

    Args:
        truth: a file of ``images`` and ``labels`` instead of the folder's own.

    Raises:
        UsageError: a file is missing, damaged, or holds what it should not; one line that names the file and the fix.
    """
    facts = folder / FACTS
    try:
        record = read_stored(facts, CaptureRecord, parse_json, "write it again", MOST_OF_A_DOCUMENT)
    except Absent as problem:
        raise UsageError(f"{str(folder)!r} is no capture (it has no {FACTS}); {MEND}") from problem
    present: list[Sent] = [kind for kind in SENT if any((folder / f"{kind}{end}").exists() for end in ENDINGS)]
    if len(present) != 1:
        found = " and ".join(present) or "none"
        raise UsageError(
            f"capture {str(folder)!r} must hold one of {', '.join(SENT)} as {' or '.join(ENDINGS)}, it has "
            f"{found}{pickled_beside(folder)}"
        )
    before, moved, own = _file(folder, BEFORE), _file(folder, present[0]), truth or _file(folder, TRUTH)
    known = StoredArrays(own) if truth or own.exists() else None
    for name in ("images", "labels"):
        if known is not None and name not in known:
            raise UsageError(f"{str(own)!r} has no array {name!r}; a truth is images and labels")
    found_before, found_moved = StoredArrays(before), StoredArrays(moved)
    digest = "-".join(sha256(path)[:16] for path in (facts, before, moved))
    return Capture(folder, record, found_before, found_moved, present[0], known, digest)


def _file(folder: Path, stem: str) -> Path:
    """The file of a capture's arrays, in one format or the other."""
    there = [path for path in (folder / f"{stem}{end}" for end in ENDINGS) if path.exists()]
    if len(there) > 1:
        raise UsageError(f"capture {str(folder)!r} holds {there[0].name} and {there[1].name}; keep one of them")
    return there[0] if there else folder / f"{stem}{ENDINGS[0]}"
