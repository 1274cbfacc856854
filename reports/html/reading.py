"""Files of a run folder, read with care: regular files inside the folder, of a bounded size, never unpickled."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

_MOST_BYTES = 256 * 2**20
_LONGEST_LINE = 2**20
# Beyond it a whole number is no longer exact as a JSON number, and no count of ours.
_LARGEST = 2**53


class Unreadable(Exception):
    """Why a file cannot be used, as a half-sentence; ``absent`` where it is simply not there."""

    def __init__(self, reason: str, absent: bool = False) -> None:
        super().__init__(reason)
        self.absent = absent


def inside(folder: Path, *parts: str) -> Path:
    """The regular file of these parts below ``folder``.

    Raises:
        Unreadable: it is absent, no regular file, too large, or a link that leaves the folder.
    """
    file = folder.joinpath(*parts)
    try:
        if not file.exists():
            raise Unreadable("is not there", absent=True)
        if not file.resolve().is_relative_to(folder.resolve()):
            raise Unreadable("is a link that leaves the folder")
        if not file.is_file():
            raise Unreadable("is not a file")
        if file.stat().st_size > _MOST_BYTES:
            raise Unreadable(f"is larger than {_MOST_BYTES // 2**20} MiB")
    except (OSError, ValueError, RuntimeError) as error:
        raise Unreadable(f"cannot be opened ({_problem(error)})") from error
    return file


def read_bytes(folder: Path, *parts: str) -> bytes:
    """The content of a file below ``folder``. Raises Unreadable."""
    try:
        return inside(folder, *parts).read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read ({_problem(error)})") from error


def read_json(folder: Path, *parts: str) -> dict[str, Any]:
    """The JSON object of a file below ``folder``. Raises Unreadable."""
    content = read_bytes(folder, *parts)
    if not content.strip():
        raise Unreadable("is empty")
    try:
        parsed = tame(from_json(content))
    except ValueError as error:
        raise Unreadable("is not complete JSON") from error
    if not isinstance(parsed, dict):
        raise Unreadable("is JSON of another kind")
    return parsed


def read_lines(folder: Path, *parts: str) -> Iterator[bytes]:
    """The lines of a file below ``folder``; one that is absurdly long comes cut, hence broken. Raises Unreadable."""
    try:
        with inside(folder, *parts).open("rb") as stream:
            while line := stream.readline(_LONGEST_LINE):
                yield line
    except OSError as error:
        raise Unreadable(f"cannot be read ({_problem(error)})") from error


def tame(value: Any) -> Any:
    """The same JSON with null for every whole number that is too large to be one of ours."""
    if isinstance(value, dict):
        return {name: tame(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [tame(entry) for entry in value]
    return None if isinstance(value, int) and abs(value) > _LARGEST else value


def _problem(error: Exception) -> str:
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
