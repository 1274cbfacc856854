"""Arrays in a capture's file: names, types and shapes are read at once, values when they are asked for.

So a file is held against its network before its values take any memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, BinaryIO, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from harness.base.errors import UsageError
from harness.base.vectors import REAL
from harness.results.files import Absent, Damaged, checked, open_archive, open_file, parse_json

# The formats of a capture's arrays, neither of which holds code: NumPy's `.npz`, and `.safetensors`.
#
# The latter (https://huggingface.co/docs/safetensors) is the length of a header in eight bytes, the header as JSON,
# then all values end to end; it needs no library.

# The format's own limit is larger; a network of a hundred thousand tensors has a header of this size.
_LONGEST_HEADER = 16 * 2**20
_LONGEST_NAME = 80
_BFLOAT = "BF16"
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", _BFLOAT: "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip

CONVERT = (
    "where you trust it, convert it: numpy.savez(NEW, **{name: value.numpy() for name, value in torch.load(OLD, "
    "weights_only=True).items()})"
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """An array's shape, and how its values are read from the open file.

    ``coarser`` is how many times as coarse they are as the floats they are read into.
    """

    shape: Shape
    read: Callable[[BinaryIO], np.ndarray]
    coarser: float = 1.0


# Parts of a name that a wrapper of the network puts there: torch.compile, DataParallel, Opacus, FSDP, checkpointing.
_WRAPPERS = {"_orig_mod", "module", "_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def unwrapped(found: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Names in a file by the network's own: without what wrappers put into them, where that leaves each name once.

    A name that is the network's stays as it is, and so do all where what is left is not the network's either.
    """
    found, own = list(found), {_bare(name): name for name in wanted}
    known = set(own.values())
    if known >= set(found):
        return {name: name for name in found}
    bare = [_bare(name) for name in found]
    common = _common_start(bare) if not any(name in own for name in bare) else ""
    names = [own.get(name.removeprefix(common), given) for name, given in zip(bare, found, strict=True)]
    fits = len(set(names)) == len(names) and len(own) == len(known) and known & set(names)
    return dict(zip(names if fits else found, found, strict=True))


def _bare(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    # peft leaves the adapter's own name out of what it saves.
    return ".".join(
        part for part, last in zip(parts, ["", *parts], strict=False)
        if not (part == "default" and last.startswith("lora_"))
    )  # fmt: skip


def _common_start(names: list[str]) -> str:
    """The first part of all names with its dot, as ``model.`` of a trainer's checkpoint; empty where they differ."""
    starts = {name.partition(".")[0] for name in names if "." in name}
    return f"{starts.pop()}." if len(starts) == 1 and all("." in name for name in names) else ""


def quoted(name: str) -> str:
    """A name from a file in one line, and not at any length."""
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def in_npz(stream: BinaryIO) -> dict[str, Entry]:
    """The arrays of an ``.npz`` archive by name. Raises Damaged, or what a damaged archive makes others raise."""
    found: dict[str, Entry] = {}
    with open_archive(stream) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise Damaged(f"holds {quoted(member.filename)}, no plain array, which may run code; {CONVERT}")
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as values:
                shape, dtype = _header(values)
                left = member.file_size - values.tell()
            if dtype.hasobject:
                raise Damaged(f"{quoted(name)} holds pickled objects, which are never loaded")
            _require_numbers(name, dtype)
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left:
                raise Damaged(f"{quoted(name)} claims {shape} values of {dtype}, and has {left} bytes")
            if name in found:
                raise Damaged(f"has two arrays {quoted(name)}")
            found[name] = Entry(shape, _member(member.filename))
    return found


def _header(values: IO[bytes]) -> tuple[Shape, np.dtype]:
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[np.lib.format.read_magic(values)](values)
    return shape, dtype


def _member(name: str) -> Callable[[BinaryIO], np.ndarray]:
    def read(stream: BinaryIO) -> np.ndarray:
        with open_archive(stream) as archive, archive.open(name) as values:
            return np.lib.format.read_array(values, allow_pickle=False)

    return read


class _Described(BaseModel, extra="forbid", strict=True):
    """An array in the header of a ``.safetensors`` file."""

    dtype: str
    shape: list[Annotated[int, Field(ge=0)]]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


def in_safetensors(stream: BinaryIO) -> dict[str, Entry]:
    """The arrays of a ``.safetensors`` file by name. Raises Damaged."""
    length = int.from_bytes(stream.read(8), "little")
    if length > _LONGEST_HEADER:
        raise Damaged(f"claims a header of {length} bytes")
    header = parse_json(stream.read(length))
    if not isinstance(header, dict):
        raise Damaged("has a header that is no object")
    header.pop("__metadata__", None)
    start, end = stream.tell(), stream.seek(0, 2)
    described = {name: checked(_Described, value) for name, value in header.items()}
    found, position = {}, 0
    for name, one in sorted(described.items(), key=lambda item: item[1].data_offsets):
        if one.dtype not in _TYPES:
            raise Damaged(f"{quoted(name)} is of type {quoted(one.dtype)}, which is not read")
        dtype, (first, last) = np.dtype(_TYPES[one.dtype]), one.data_offsets
        # End to end, so that no value is claimed by two arrays.
        if first != position or last - first != math.prod(one.shape) * dtype.itemsize:
            raise Damaged(f"{quoted(name)} does not lie where its shape and the others demand")
        halved, shape = one.dtype == _BFLOAT, tuple(one.shape)
        found[name] = Entry(shape, _stretch(start + first, dtype, shape, halved), 2.0**16 if halved else 1.0)
        position = last
    if position != end - start:
        raise Damaged(f"has {end - start} bytes of values, its header claims {position}")
    return {name: found[name] for name in described}


def _stretch(start: int, dtype: np.dtype, shape: Shape, halved: bool) -> Callable[[BinaryIO], np.ndarray]:
    def read(stream: BinaryIO) -> np.ndarray:
        stream.seek(start)
        values = np.frombuffer(stream.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        # A bfloat16 is the upper half of a float32.
        return (values.astype("<u4") << 16).view("<f4") if halved else values

    return read


def _require_numbers(name: str, dtype: np.dtype) -> None:
    if dtype.kind == "c":
        raise Damaged(f"{quoted(name)} holds {dtype}, no numbers that are read; {REAL}")
    if dtype == np.dtype("V2"):
        raise Damaged(f"{quoted(name)} holds {dtype}, which bfloat16 becomes in .npz: turn it into float32 first")
    if dtype.kind not in "fiub":
        raise Damaged(f"{quoted(name)} holds {dtype}, no numbers")


#: Arrays come in one of these formats; ours is the first.
ENDINGS = (".npz", ".safetensors")
FIX = "write it with harness.capture, or numpy.savez with one array per tensor of the state_dict"
FIX_TRUTH = "write it with numpy.savez(FILE, images=images, labels=labels)"
_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_ONE_ARRAY = ".npy"

# Of whatever the arrays were loaded from; without names they are taken in the order of the state_dict.
SAVE = "numpy.savez(NEW, *arrays) with one array per tensor, in the order of the state_dict()"

Found = TypeVar("Found")


class StoredArrays(Mapping[str, np.ndarray]):
    """The arrays of a file by name. Reading one raises UsageError where the file is damaged or a value not finite."""

    def __init__(self, path: Path, fix: str = FIX) -> None:
        """Reads names, types and shapes.

        Args:
            fix: how the file is written again, where it cannot be read.

        Raises:
            UsageError: there is no such file, or it is no plain archive of numbers; one line with a fix.
        """
        self.path, self._grain, self._fix = path, 0.0, fix
        if path.suffix in _PICKLED:
            raise UsageError(f"{str(path)!r} may run code when it is loaded, and is not; {CONVERT}")
        if path.suffix == _ONE_ARRAY:
            raise UsageError(f"{str(path)!r} is one array without a name; {fix}")
        find = in_safetensors if path.suffix == ".safetensors" else in_npz
        self._entries: dict[str, Entry] = self._with_file(find)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of all arrays, by name."""
        return {name: entry.shape for name, entry in self._entries.items()}

    @property
    def grain(self) -> float:
        """The coarsest step between neighbouring floats, of those that have been read."""
        return self._grain

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._with_file(self._entries[name].read)
        if not np.isfinite(found).all():
            trained = "the client's training diverged, and nothing can be read from it; capture another round"
            said = trained if self._fix == FIX else f"no number; {self._fix}"
            raise UsageError(f"{str(self.path)!r}: {quoted(name)} holds NaN or infinity: {said}")
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
                f"{str(self.path)!r} does not exist{other_beside(self.path.parent, self.path.stem)}; {self._fix}"
            ) from problem
        except UsageError:
            raise
        except Damaged as problem:
            raise UsageError(f"{str(self.path)!r} {problem}; {self._fix}") from problem
        except Exception as error:  # zipfile and numpy raise a dozen types for a damaged archive
            kind = self.path.suffix or "archive"
            raise UsageError(
                f"{str(self.path)!r} is cut off, damaged, or no {kind} of plain arrays; {self._fix}"
            ) from error


def other_beside(folder: Path, *stems: str) -> str:
    """Return what is said of a file in the place of a capture's, which is not read: a pickled one is never loaded."""
    found = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLED)
    if found:
        return f"; {found[0]!r} there may run code when it is loaded, and is not: {CONVERT}"
    others = sorted(path.name for path in folder.glob("*") if path.stem in stems and path.suffix not in ENDINGS)
    return f"; {others[0]!r} there is of a kind that is not read: load it, and {SAVE}" if others else ""
