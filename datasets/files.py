"""Files a user may have to mend: reading them ends in plain arrays or in one line that says what to do."""

import gzip
import lzma
import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from harness.errors import UsageError

# What zipfile and numpy raise on damaged archives; RuntimeError is an encrypted member, MemoryError, OverflowError
# and TypeError a damaged array header that claims an absurd shape or type.
_DAMAGE = (OSError, ValueError, EOFError, BadZipFile, zlib.error, lzma.LZMAError)
_ABSURD = (RuntimeError, MemoryError, OverflowError, TypeError)


@dataclass(frozen=True)
class DataFile:
    """A file at ``path``; ``mend`` says how to get a good one, or is None where the mend depends on the problem."""

    path: Path
    mend: str | None = None

    def wrong(self, problem: str, mend: str = "give another file") -> UsageError:
        """The one-line error for this file; ``mend`` is used only where the file has no mend of its own."""
        return UsageError(f"{self.path} {problem}; {self.mend or mend}")

    def read_bytes(self) -> bytes:
        """The content. Raises UsageError where it cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise self.wrong(f"cannot be read ({error.strerror})", "check the path and its permissions") from error

    def read_unpacked(self) -> bytes:
        """The content, decompressed where the file is a .gz. Raises UsageError where it cannot be read."""
        content = self.read_bytes()
        if self.path.suffix != ".gz":
            return content
        try:
            return gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise self.wrong("is damaged, or no gzip file") from error

    def read_arrays(self, *names: str) -> list[np.ndarray]:
        """The named arrays of an .npz archive, in the order asked; pickled (object) arrays are refused.

        Raises:
            UsageError: not a zip archive, damaged, an array is missing or holds pickled objects.
        """
        advice = f"save it again with numpy.savez(path, {', '.join(f'{name}=...' for name in names)})"
        try:
            with self.path.open("rb") as stream, ZipFile(stream) as archive:
                absent = [name for name in names if f"{name}.npy" not in archive.namelist()]
                if absent:
                    raise self.wrong(f"has no array {absent[0]!r}", advice)
                return [_read_array(archive, name) for name in names]
        except (*_DAMAGE, *_ABSURD) as error:
            problem = "cannot be read as an .npz archive of plain arrays (damaged, or it holds pickled objects)"
            raise self.wrong(problem, advice) from error


def _read_array(archive: ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write a compressed .npz archive atomically; equal arrays give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as stream:
        temporary = Path(stream.name)
        try:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
            stream.flush()
            # A temporary file is private to its owner; a data root may be shared.
            temporary.chmod(0o644)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
