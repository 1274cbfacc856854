"""Files from outside come in here: regular ones only, of a bounded size, each read once."""

import hashlib
import stat
from io import BufferedReader
from pathlib import Path

from harness.base.errors import UsageError

#: Data, models and reconstructions; what is larger does not fit into memory beside a run.
MOST_BYTES = 16 * 2**30
#: Documents: results, baselines, settings.
MOST_OF_A_DOCUMENT = 256 * 2**20

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link",
}  # fmt: skip


class Unreadable(UsageError):
    """A file that cannot be read. ``reason`` is a half-sentence about it."""

    def __init__(self, path: Path, reason: str, mend: str = "name a plain file") -> None:
        super().__init__(f"{str(path)!r} {reason}; {mend}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[UsageError], tuple[object, ...]]:
        # A worker's exception comes back by its message alone.
        return UsageError, self.args


class Absent(Unreadable):
    """A file that is not there."""


def kind_of(mode: int) -> str | None:
    """What stands at a path with this ``st_mode``, in words; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no plain file")


def open_file(path: Path, most: int = MOST_BYTES) -> BufferedReader:
    """A regular file, or one that a link leads to, opened for reading.

    Raises:
        Absent: there is none.
        Unreadable: it is no regular file, has more than ``most`` bytes, or cannot be opened.
    """
    try:
        facts = path.stat()
        # Asked before it is opened: opening a pipe waits for whoever writes into it.
        if kind := kind_of(facts.st_mode):
            raise Unreadable(path, f"cannot be read (it is {kind})")
        if facts.st_size > most:
            raise _too_large(path, most)
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise _failed(path, error) from error


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file. Raises Absent and Unreadable, both one line with a fix."""
    with open_file(path, most) as stream:
        try:
            # A file may grow, or hide its size as those of the kernel do.
            content = stream.read(most + 1)
        except (OSError, MemoryError) as error:
            raise _failed(path, error) from error
    if len(content) > most:
        raise _too_large(path, most)
    return content


def read_text(path: Path) -> str:
    """The text of a document in UTF-8. Raises Absent and Unreadable."""
    try:
        return read_bytes(path, MOST_OF_A_DOCUMENT).decode()
    except UnicodeDecodeError as error:
        raise Unreadable(path, "is no text in UTF-8", "save it as one") from error


def sha256(path: Path) -> str:
    """The digest of a file's content. Raises Absent and Unreadable."""
    with open_file(path) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise _failed(path, error) from error


def _too_large(path: Path, most: int) -> Unreadable:
    return Unreadable(path, f"is larger than {most // 2**20} MiB", "name a smaller file")


def _failed(path: Path, error: Exception) -> Unreadable:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Absent(path, "does not exist", "check the path")
    problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
    mend = "check its permissions" if isinstance(error, PermissionError) else "check the path"
    return Unreadable(path, f"cannot be read ({problem.lower()})", mend)
