"""Files a user may have to fix: reading them ends in plain arrays or in one line that says what to do."""

import gzip
import io
import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.base.errors import UsageError
from harness.results.files import MOST_BYTES, Damaged, Unreadable, parse_arrays, read_bytes


@dataclass(frozen=True)
class DataFile:
    """A file at ``path``; ``fix`` says how to get a good one, or is None where the fix depends on the problem."""

    path: Path
    fix: str | None = None

    def wrong(self, problem: str, fix: str = "give another file") -> UsageError:
        """The one-line error for this file; ``fix`` is used only where the file has no fix of its own."""
        return UsageError(f"{self.path} {problem}; {self.fix or fix}")

    def read_bytes(self) -> bytes:
        """The content. Raises UsageError where it cannot be read."""
        try:
            return read_bytes(self.path)
        except Unreadable as problem:
            raise self.wrong(problem.reason, "check the path and its permissions") from problem

    def read_unpacked(self) -> bytes:
        """The content, decompressed where the file is a .gz. Raises UsageError where it cannot be read."""
        content = self.read_bytes()
        if self.path.suffix != ".gz":
            return content
        try:
            with gzip.open(io.BytesIO(content)) as stream:
                unpacked = stream.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error, MemoryError) as error:
            raise self.wrong("is damaged, or no gzip file") from error
        if len(unpacked) > MOST_BYTES:
            raise self.wrong(f"unpacks to more than {MOST_BYTES // 2**20} MiB")
        return unpacked

    def read_arrays(self, *names: str) -> list[np.ndarray]:
        """The named arrays of an .npz archive, in the order asked; pickled (object) arrays are refused.

        Raises:
            UsageError: not a zip archive, damaged, an array is missing or holds pickled objects.
        """
        advice = f"save it again with numpy.savez(path, {', '.join(f'{name}=...' for name in names)})"
        try:
            arrays = parse_arrays(self.read_bytes(), names)
        except Damaged as problem:
            raise self.wrong(str(problem), advice) from problem
        return [arrays[name] for name in names]


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
