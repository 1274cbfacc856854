"""Arrays in a capture's file: names, types and shapes are read at once, values when they are asked for.

So a file is held against its network before its values take any memory.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from harness.base.errors import UsageError
from harness.results.files import Absent, open_file
from harness.results.formats import CONVERT, Entry, Shape, in_npz, in_safetensors, quoted
from harness.results.stored import Damaged

#: Arrays come in one of these formats; ours is the first.
ENDINGS = (".npz", ".safetensors")
MEND = "write it with harness.capture, or numpy.savez with one array per tensor of the state_dict"
_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".npy")

Found = TypeVar("Found")


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of a file by name. Reading one raises UsageError where the file is damaged or a value not finite."""

    def __init__(self, path: Path) -> None:
        """Reads names, types and shapes.

        Raises:
            UsageError: there is no such file, or it is no plain archive of numbers; one line with a fix.
        """
        self.path, self._grain = path, 0.0
        if path.suffix in _PICKLED:
            raise UsageError(f"{str(path)!r} may run code when it is loaded, and is not; {CONVERT}")
        find = in_safetensors if path.suffix == ".safetensors" else in_npz
        self._entries: dict[str, Entry] = self._with_file(find)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of all arrays, by name."""
        return {name: entry.shape for name, entry in self._entries.items()}

    @property
    def grain(self) -> float:
        """The coarsest step between neighbouring floats, of those that have been read."""
        return self._grain

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._with_file(self._entries[name].read)
        if not np.isfinite(found).all():
            raise UsageError(
                f"{str(self.path)!r}: {quoted(name)} holds NaN or infinity: the client's training diverged, and "
                "nothing can be read from it; capture another round"
            )
        if found.dtype.kind == "f" and found.size:
            spacing = float(np.spacing(np.abs(found).max())) * self._entries[name].coarser
            self._grain = max(self._grain, spacing)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _with_file(self, read: Callable[[BinaryIO], Found]) -> Found:
        try:
            with open_file(self.path) as stream:
                return read(stream)
        except Absent as problem:
            raise UsageError(
                f"{str(self.path)!r} does not exist{pickled_beside(self.path.parent)}; {MEND}"
            ) from problem
        except UsageError:
            raise
        except Damaged as problem:
            raise UsageError(f"{str(self.path)!r} {problem}; {MEND}") from problem
        except Exception as error:  # zipfile and numpy raise a dozen types for a damaged archive
            kind = self.path.suffix or "archive"
            raise UsageError(f"{str(self.path)!r} is cut off, damaged, or no {kind} of plain arrays; {MEND}") from error


def pickled_beside(folder: Path) -> str:
    """What is said of a pickled file in a capture's place: it is never loaded."""
    found = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLED)
    return f"; {found[0]!r} there may run code when it is loaded, and is not: {CONVERT}" if found else ""
