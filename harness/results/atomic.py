"""Files appear whole or not at all, and only where nothing stands or a plain file does."""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from harness.base.errors import OutputError
from harness.results.files import kind_of

#: What runs keep, hours of work perhaps, and write themselves.
OF_RUNS = frozenset({"results.json", "victims.jsonl", "training.json", "checkpoint.pt"})
_BEGINNING = 1024


def write_atomic(path: Path, content: bytes, option: str = "--out", mode: int = 0o644) -> None:
    """Write ``content`` to ``path``, creating its folder; a crash leaves the old file or none, never half of one.

    ``option`` is the one that names the place; results are meant to be shared, hence the ``mode``.

    Raises:
        OutputError: the folder cannot be created or written, or a link, device, pipe or folder stands there.
    """
    with _told_in_one_line(path, option):
        _refuse_special(path, option)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_then_rename(path, content, mode)


def require_writable(path: Path, option: str = "--out") -> None:
    """Try whether a document can be written to ``path``, so that a command fails before its work and not after.

    Raises:
        OutputError: it cannot, or a file that a run wrote stands there.
    """
    with _told_in_one_line(path, option):
        _refuse_special(path, option)
        if path.name in OF_RUNS and path.exists():
            raise OutputError(
                f"cannot write {str(path)!r} (it is a run's own file); choose another place with {option}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent, prefix=".", suffix=".partial").close()


def require_own(path: Path, beginning: bytes, option: str = "--out") -> None:
    """Refuses a file of somebody else's before work is done that would be written over it.

    ``beginning``: a pattern of how ours begin, without blanks; what is empty or not there is in nobody's way.

    Raises:
        OutputError: a file stands there that begins otherwise, cannot be read, or is no plain one.
    """
    with _told_in_one_line(path, option):
        _refuse_special(path, option)
        if not path.exists():
            return
        with path.open("rb") as stream:
            begins = b"".join(stream.read(_BEGINNING).split())
        if begins and not re.match(beginning, begins):
            raise OutputError(f"cannot write {str(path)!r} (it is a file of yours); choose another place with {option}")


def remove_plain(path: Path, option: str = "--out") -> None:
    """Takes a plain file away, if one stands there.

    Raises:
        OutputError: it cannot be taken away, or a link, device, pipe or folder stands there.
    """
    with _told_in_one_line(path, option):
        _refuse_special(path, option)
        path.unlink(missing_ok=True)


def move_plain(source: Path, path: Path, option: str = "--out") -> None:
    """Puts a finished file of the same file system at ``path``, creating its folder.

    Raises:
        OutputError: the folder cannot be written, or a link, device, pipe or folder stands there.
    """
    with _told_in_one_line(path, option):
        _refuse_special(path, option)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, path)


@contextmanager
def _told_in_one_line(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"cannot write {str(path)!r} ({problem}); choose another place with {option}") from error


def _refuse_special(path: Path, option: str) -> None:
    """Refuse a path where a device, a pipe or somebody's link stands: what is written replaces what stands there."""
    try:
        kind = kind_of(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if kind:
        raise OutputError(f"cannot write {str(path)!r} (it is {kind}); choose another place with {option}")


def _write_then_rename(path: Path, content: bytes, mode: int) -> None:
    # Renaming is atomic only inside one file system, hence the temporary name in the same folder.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".partial", delete=False) as stream:
        temporary = Path(stream.name)
        try:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            # A temporary file is private to its owner.
            temporary.chmod(mode)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


# One run at a time writes into a folder.

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
        "harness: this run replaces the earlier results in %r; use another --out to keep both, or --resume to reuse "
        "finished parts", str(folder),
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
