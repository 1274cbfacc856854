"""Files from outside come in here: regular ones only, of a bounded size, each read once and checked field by field.

Content may be JSON, arrays or tensors. Nothing is unpickled but plain tensors, and nothing unpacks to more than a file
may hold.
"""

import hashlib
import io
import stat
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from pydantic import AfterValidator, BaseModel, InstanceOf, TypeAdapter, ValidationError
from pydantic_core import from_json
from torch import Tensor

from harness.base.errors import UsageError

#: Data, models and reconstructions; what is larger does not fit into memory beside a run.
MOST_BYTES = 16 * 2**30
#: Documents: results, baselines, settings.
MOST_OF_A_DOCUMENT = 256 * 2**20
#: Tokenizers of texts.
MOST_OF_A_TOKENIZER = 64 * 2**20

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link",
}  # fmt: skip


class Unreadable(UsageError):
    """A file that cannot be read. ``reason`` is a half-sentence about it."""

    def __init__(self, path: Path, reason: str, fix: str = "name a plain file") -> None:
        super().__init__(f"{str(path)!r} {reason}; {fix}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[UsageError], tuple[object, ...]]:
        # A worker's exception comes back by its message alone.
        return UsageError, self.args


class Absent(Unreadable):
    """A file that is not there."""


def kind_of(mode: int) -> str | None:
    """Return what stands at a path with this ``st_mode``, in words; None for a regular file."""
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
    fix = "check its permissions" if isinstance(error, PermissionError) else "check the path"
    return Unreadable(path, f"cannot be read ({problem.lower()})", fix)


# What is said of content that is not what it should be.


class Damaged(Exception):
    """Reason why content is not what it should be, as a half-sentence."""


# Opening a zip archive that may come from anywhere: its directory is bounded before anything is made of it.

#: A network of a hundred thousand tensors has a directory of this size.
MOST_ENTRIES, LONGEST_DIRECTORY = 100_000, 16 * 2**20
_ENTRY = b"PK\x01\x02"


def open_archive(stream: BinaryIO) -> ZipFile:
    """The archive. Raises Damaged: its directory, which is read as a whole, is larger than any real one.

    What a record at the end of the file says of the directory need not be so; what is asked for is looked at.
    """
    guard = _Guard(stream)
    archive = ZipFile(guard)  # type: ignore[arg-type]  # all that is asked of a file
    archive.fp = stream
    return archive


class _Guard:
    """A file of which no more can be read at once than a directory may be long."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell, self.seekable = stream.seek, stream.tell, stream.seekable

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            here = self.tell()
            size = self.seek(0, io.SEEK_END) - here
            self.seek(here)
        if size > LONGEST_DIRECTORY:
            raise Damaged(f"is an archive with a directory of {size / 2**20:.0f} MiB, far longer than any network's")
        content = self._stream.read(size)
        if (entries := content.count(_ENTRY)) > MOST_ENTRIES:
            raise Damaged(f"is an archive of {entries:,} entries, of which at most {MOST_ENTRIES:,} are read")
        return content


Kind = TypeVar("Kind")
_LONGEST_PLACE = 80
# Of a tensor that repeats its values, in bytes.
_LARGEST = 2**30


def parse_json(content: bytes) -> Any:
    """The value of a JSON text. Raises Damaged."""
    try:
        # Editors and shells of Windows put a mark before what they save.
        return from_json(content.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise Damaged("is text in UTF-16; save it in UTF-8") from error
        raise Damaged("is not complete JSON") from error


def parse_arrays(content: bytes, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz`` archive by name: all, or those asked for. Raises Damaged."""
    try:
        with np.load(io.BytesIO(_bounded(content)), allow_pickle=False) as archive:
            absent = [name for name in names or () if name not in archive.files]
            if absent:
                raise Damaged(f"has no array {absent[0]!r}")
            # A member that is no array comes as the bytes it is.
            return {name: _array(archive[name]) for name in names or archive.files}
    except Damaged:
        raise
    except Exception as error:  # zipfile and numpy raise a dozen types for a damaged archive
        problem = "cannot be read as an .npz archive of plain arrays (damaged, or it holds pickled objects)"
        raise Damaged(problem) from error


def _array(member: Any) -> np.ndarray:
    if not isinstance(member, np.ndarray):
        raise TypeError("no array")
    return member


def parse_tensors(content: bytes) -> Any:
    """Return what ``torch.save`` wrote of tensors and plain values. Raises Damaged."""
    try:
        # torch reads on where a bit has flipped, and a model with another weight looks like any other.
        _bounded(content, whole=True)
        with warnings.catch_warnings():
            # The caller says what is wrong, in one line.
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Damaged:
        raise
    except Exception as error:  # torch.load raises a dozen types for a damaged file
        raise Damaged("holds other things than tensors, or is cut off") from error


def _bounded(content: bytes, whole: bool = False) -> bytes:
    """The content. Raises Damaged: an archive that unpacks to too much, or not to the ``whole`` of what was packed."""
    if is_zipfile(io.BytesIO(content)):
        with open_archive(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise Damaged(f"unpacks to more than {MOST_BYTES // 2**20} MiB")
            if whole and archive.testzip() is not None:
                raise Damaged("is damaged: its checksums are not those of its content")
    return content


def checked(kind: type[Kind], content: object) -> Kind:
    """Content as what it is claimed to be, a record or a type. Raises Damaged, which names the first wrong field."""
    try:
        return _adapter(kind).validate_python(content)
    except ValidationError as error:
        raise Damaged(f"is damaged: {first_problem(error)}") from error
    except RecursionError as error:
        raise Damaged("is damaged: nested too deeply") from error


@lru_cache
def _adapter(kind: type[Kind]) -> TypeAdapter[Kind]:
    return TypeAdapter(kind)


# What people write, by the kind of pydantic's complaint.
_PLAINER = {
    "extra_forbidden": "is not known here; correct its name, or leave it out", "tuple_type": "write a list",
    "missing": "is missing",
}  # fmt: skip


def first_problem(error: ValidationError) -> str:
    """The first complaint in one line; its place is quoted because it may hold names from the file."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = _PLAINER.get(problem["type"], " ".join(problem["msg"].removeprefix("Value error, ").split())[:200])
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place[:_LONGEST_PLACE]!r}: {message}" if place else message


def read_stored(
    path: Path, kind: type[Kind], parse: Callable[[bytes], object], fix: str, most: int = MOST_BYTES
) -> Kind:
    """The record in a file.

    Raises:
        Absent: there is no such file.
        UsageError: it cannot be read, or is not such a record; one line that names the file, the field and the fix.
    """
    content = read_bytes(path, most)
    try:
        return checked(kind, parse(content))
    except Damaged as problem:
        told = f"; {fix.partition(' ')[0]} " in str(problem)  # which says more of what to do than the fix
        raise UsageError(f"{str(path)!r} {problem}" + ("" if told else f"; {fix}")) from problem


def _plain(tensor: Tensor) -> Tensor:
    """A tensor that fits into memory: one that repeats its values can claim any size."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.device.type != "cpu":
        raise ValueError("not a plain tensor of real numbers")
    if tensor.is_nested or tensor.numel() * tensor.element_size() > max(_LARGEST, tensor.untyped_storage().nbytes()):
        raise ValueError("a tensor that claims more values than the file holds")
    return tensor


def _finite(tensor: Tensor) -> Tensor:
    if not tensor.isfinite().all():
        raise ValueError("holds NaN or infinity")
    return tensor


PlainTensor = Annotated[InstanceOf[Tensor], AfterValidator(_plain)]
FiniteTensor = Annotated[PlainTensor, AfterValidator(_finite)]


class Stored(BaseModel, extra="forbid", strict=True):
    """A record of tensors and plain values; nothing in it that its kind does not know."""
