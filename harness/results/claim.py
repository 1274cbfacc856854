"""One run at a time writes into a folder."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from harness.base.errors import OutputError
from harness.results.atomic import require_own, require_writable
from harness.results.files import kind_of

log = logging.getLogger(__name__)


@contextmanager
def claimed(folder: Path, replaced: str | None = None) -> Iterator[None]:
    """The folder is created, can be written, and is this process's alone until the end of the block.

    The system lets go of the lock of a process that died, however it did.

    Args:
        replaced: the file of an earlier run's results that this one writes anew, which is said where it is there;
            None for a run that goes on with what is there.

    Raises:
        OutputError: the folder cannot be written, another run writes into it, or a file of somebody else's stands there
            under a name that runs write.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        kind = kind_of(folder.lstat().st_mode) or "a file"
        raise OutputError(f"cannot write {str(folder)!r} (it is {kind}); choose another place with --out")
    require_writable(folder / _LOCK)
    for name, beginning in _OWN.items():
        require_own(folder / name, beginning)
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise OutputError(
            f"another run is writing into {str(folder)!r}; wait until it has ended, or choose another folder with --out"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"cannot lock {str(folder)!r} ({error}); choose another folder with --out") from error
    if replaced and os.path.lexists(folder / replaced):
        tell_replaced(folder)
    try:
        yield
    finally:
        lock.release()


def tell_replaced(folder: Path) -> None:
    """Says that the results there are replaced."""
    log.warning(
        "harness: the results of an earlier run in %r are replaced; --out of its own keeps both, --resume uses "
        "what is finished there", str(folder),
    )  # fmt: skip


_LOCK = ".lock"
# How the files begin that runs write under names that others may have thought of too.
_OWN = {
    "results.json": rb'{"schema_version":\d+,"environment":{',
    "victims.jsonl": rb'{"cell":"[0-9a-f]+","role":',
    "training.json": rb'{"schema_version":\d+,"kind":"training"',
    "frontier.json": rb'{"schema_version":\d+,"kind":"frontier"',
    "judged.json": rb'{"valid":(true|false),"prior":',
}
