"""A run's folder: one file per finished cell, which is what ``--resume`` reads, and the result document.

Names of files are hashes that we computed; no name from a result or a command line becomes part of a path.
"""

import hashlib
import io
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock

from harness.base.errors import OutputError, UsageError
from harness.base.version import SCHEMA_VERSION
from harness.results.atomic import tell_replaced, write_atomic
from harness.results.files import (
    MOST_BYTES,
    MOST_OF_A_DOCUMENT,
    Absent,
    Damaged,
    Unreadable,
    checked,
    parse_arrays,
    parse_json,
    read_bytes,
)
from harness.results.schema import CellResult, ResultDocument, StoredCell, VictimRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The folder of locks, one per key, below a run's.
LOCKS = "locks"

# What a run reads again in its folder, where it goes on or has workers.
_READ_AGAIN = ("cells", "reconstructions", "trained", "step-sizes")
_KEY = re.compile(r"[0-9a-f]{8,64}")


def cell_key(settings: Mapping[str, Any]) -> str:
    """The name of a cell: 20 hexadecimal digits that change with any setting and with the result schema."""
    return hashlib.sha256(f"{SCHEMA_VERSION}:{_canonical(settings)}".encode()).hexdigest()[:20]


def _canonical(settings: Mapping[str, Any]) -> str:
    return json.dumps(_plain(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """Settings as JSON gives them back. An infinite setting is kept apart from null by its name."""
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class RunFolder:
    """The files of one run below ``path``; the folder is created when something is written.

    Args:
        path: the folder.
        since: files that were changed before that are not there, in seconds of the folder's own clock
            (:meth:`clock`): what workers of this run made is told from what an earlier one left.
        shared: whether several workers write into it, each cell by one of them.
    """

    def __init__(self, path: Path | str, since: float = 0.0, shared: bool = False) -> None:
        self.path, self.since, self.shared = Path(path), since, shared

    def clock(self) -> float:
        """The time that a file written now would have. Raises OutputError where none can be written."""
        with _told_of(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, prefix=".", suffix=".partial") as stamp:
                return Path(stamp.name).stat().st_mtime

    def anew(self) -> "RunFolder":
        """Return the folder for a new run; its files are an earlier run's. Raises OutputError where none can write."""
        now = self.clock()
        with _told_of(self.path):
            for path in (path for name in _READ_AGAIN for path in (self.path / name).rglob("*")):
                # A file can claim any time, also one to come: it is older than this run all the same.
                if path.lstat().st_mtime >= now:
                    os.utime(path, (now - 1, now - 1), follow_symlinks=False)
        return RunFolder(self.path, now, self.shared)

    def is_of_this_run(self, path: Path) -> bool:
        """Return whether there is a file, and no earlier run left it; nobody's link, which a run never writes."""
        return os.path.exists(path) and path.lstat().st_mtime >= self.since

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Whoever else makes what this key names waits for us, or we for them; in a shared folder only.

        The system lets go of what a worker held that died.
        """
        if not self.shared:
            yield
            return
        with _told_of(self.path):
            lock = self.path / LOCKS / _checked(key)
            lock.parent.mkdir(parents=True, exist_ok=True)
            held = FileLock(lock)
            held.acquire()
        try:
            yield
        finally:
            held.release()

    @property
    def pictures(self) -> Path:
        """The folder of pictures, one per cell."""
        return self.path / "pictures"

    def picture(self, key: str) -> Path:
        """Return where the picture of a cell belongs."""
        return self.pictures / f"{_checked(key)}.png"

    def write_cell(
        self, key: str, settings: Mapping[str, Any], cell: CellResult, victims: Iterable[VictimRecord]
    ) -> None:
        """Store a finished cell. Raises UsageError where the folder cannot be written."""
        stored = StoredCell(schema_version=SCHEMA_VERSION, settings=_plain(settings), cell=cell, victims=list(victims))
        write_atomic(self._cell_file(key), stored.model_dump_json(indent=1).encode())

    def read_cell(self, key: str, settings: Mapping[str, Any]) -> StoredCell | None:
        """The finished cell of these settings, or None where it must be computed.

        A file that is damaged, of another schema or made with other settings is never trusted: it is named in a
        logged warning and treated as absent.
        """
        path = self._cell_file(key)
        if (stored := self._trusted(path, MOST_OF_A_DOCUMENT, _parse_cell)) is None:
            return None
        if _canonical(stored.settings) != _canonical(settings):
            return _ignore(path, "was made with other settings")
        if stored.cell.key != key:
            return _ignore(path, "names another cell than its file does")
        return stored

    def has_cell(self, key: str) -> bool:
        """Return whether there is a file of this key, whatever it holds."""
        return self._cell_file(key).is_file()

    def find_cell(self, key: str) -> StoredCell | None:
        """The finished cell of this key, whatever its settings; None where there is none that can be trusted."""
        if not _KEY.fullmatch(key):
            return None
        try:
            stored = _parse_cell(self._read(self._cell_file(key), MOST_OF_A_DOCUMENT))
        except (Unreadable, Damaged, ValueError):
            return None
        return stored if cell_key(stored.settings) == key == stored.cell.key else None

    def write_results(self, document: ResultDocument, victims: Iterable[VictimRecord]) -> None:
        """Write ``victims.jsonl``, then ``results.json``, and say so where these were an earlier run's.

        Raises UsageError where the folder cannot be written.
        """
        results = self.path / "results.json"
        if results.exists() and not self.is_of_this_run(results):
            tell_replaced(self.path)
        lines = "".join(victim.model_dump_json() + "\n" for victim in victims)
        write_atomic(self.path / "victims.jsonl", lines.encode())
        # Last, so that a results.json always stands beside its victims.
        write_atomic(results, document.model_dump_json(indent=1).encode())

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store arrays under a key. Raises UsageError where the folder cannot be written."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_atomic(self._arrays_file(name), buffer.getvalue())

    def read_arrays(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays stored under a key; None where there are none or the file is damaged. Nothing is unpickled."""
        return self._trusted(self._arrays_file(name), MOST_BYTES, parse_arrays)

    def _trusted(self, path: Path, most: int, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(self._read(path, most))
        except Absent:
            return None
        except Unreadable as problem:
            return _ignore(path, problem.reason)
        except Damaged as problem:
            return _ignore(path, str(problem))

    def _read(self, path: Path, most: int) -> bytes:
        if self.since and not self.is_of_this_run(path):
            raise Absent(path, "is of an earlier run, or not there")
        return read_bytes(path, most)

    def _cell_file(self, key: str) -> Path:
        return self.path / "cells" / f"{_checked(key)}.json"

    def _arrays_file(self, name: str) -> Path:
        return self.path / "reconstructions" / f"{_checked(name)}.npz"


class NoFolder(RunFolder):
    """The folder of a run that leaves no file: cells, arrays and results stay in memory."""

    def __init__(self) -> None:
        super().__init__("in memory")
        self._cells: dict[str, StoredCell] = {}
        self._arrays: dict[str, dict[str, np.ndarray]] = {}

    def anew(self) -> "NoFolder":
        return NoFolder()

    def write_cell(
        self, key: str, settings: Mapping[str, Any], cell: CellResult, victims: Iterable[VictimRecord]
    ) -> None:
        self._cells[key] = StoredCell(
            schema_version=SCHEMA_VERSION, settings=_plain(settings), cell=cell, victims=list(victims)
        )

    def read_cell(self, key: str, settings: Mapping[str, Any]) -> StoredCell | None:
        return self._cells.get(key)

    def has_cell(self, key: str) -> bool:
        return key in self._cells

    def find_cell(self, key: str) -> StoredCell | None:
        return self._cells.get(key)

    def write_results(self, document: ResultDocument, victims: Iterable[VictimRecord]) -> None:
        """Nothing: whoever evaluates has them."""

    def write_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays[name] = dict(arrays)

    def read_arrays(self, name: str) -> dict[str, np.ndarray] | None:
        return self._arrays.get(name)


@contextmanager
def _told_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"cannot write {str(folder)!r} ({error}); choose another folder with --out") from error


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key: 8 to 64 lower-case hexadecimal digits")
    return key


def _parse_cell(content: bytes) -> StoredCell:
    """Raises Damaged: the content is not a cell of this schema."""
    document = parse_json(content)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise Damaged("is of another result schema")
    return checked(StoredCell, document)


def _ignore(path: Path, problem: str) -> None:
    log.warning("%r is computed again: it %s", str(path), problem)


# Reading a result document that may come from anywhere.


def read_results(path: Path | str) -> ResultDocument:
    """The document of a run folder or of a ``results.json`` file.

    Raises:
        UsageError: there is none, it cannot be read, is half-written, of another schema or not ours.
    """
    file = Path(path)
    file = file / "results.json" if os.path.isdir(file) else file
    document = _parse(file, _read(file))
    if not isinstance(document, dict) or not {"schema_version", "cells"} <= document.keys():
        raise _wrong(file, "is not a result of harness evaluate", "give a run folder or its results.json")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        found = version if isinstance(version, int) and abs(version) < 10**6 else "unknown"
        raise _wrong(
            file,
            f"has result schema {found}, this harness reads {SCHEMA_VERSION}",
            "run harness evaluate again or use the harness that wrote it",
        )
    try:
        return checked(ResultDocument, document)
    except Damaged as problem:
        raise _wrong(file, str(problem), "run harness evaluate again") from problem


def _read(file: Path) -> bytes:
    try:
        return read_bytes(file, MOST_OF_A_DOCUMENT)
    except Absent as error:
        done = len(list((file.parent / "cells").glob("*.json")))
        if done:
            said = f"does not exist: the run is unfinished, {done} cells and controls are done"
            raise _wrong(file, said, "add --resume to the command that began it") from error
        raise _wrong(file, "does not exist", "give the --out folder of a finished harness evaluate") from error


def _parse(file: Path, content: bytes) -> object:
    try:
        return parse_json(content)
    except Damaged as problem:
        raise _wrong(file, str(problem), "run harness evaluate again; --resume keeps the finished cells") from problem


def _wrong(file: Path, problem: str, fix: str) -> UsageError:
    return UsageError(f"{str(file)!r} {problem}; {fix}")
