"""An archive with more entries than any network has arrays is refused before time or memory goes."""

import io
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.results.arrays import StoredArrays
from harness.results.files import MOST_ENTRIES, Damaged, open_archive, parse_arrays, parse_tensors

ENTRY = b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, *[0] * 7, 5, *[0] * 6) + b"a.npy"


def archive_of(entries: int, claims: int | None = None) -> bytes:
    """An archive whose directory has so many entries, in the format for large ones; it may claim another number."""
    local = b"PK\3\4" + struct.pack("<HHHHHIIIHH", 20, *[0] * 7, 5, 0) + b"a.npy"
    directory, said = ENTRY * entries, entries if claims is None else claims
    large = struct.pack("<HHIIQQQQ", 45, 45, 0, 0, said, said, len(directory), len(local))
    return b"".join([
        local, directory, b"PK\6\6", struct.pack("<Q", len(large)), large,
        b"PK\6\7", struct.pack("<IQI", 0, len(local) + len(directory), 1),
        b"PK\5\6", struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0),
    ])  # fmt: skip


def as_capture(content: bytes, folder: Path) -> None:
    (folder / "before.npz").write_bytes(content)
    StoredArrays(folder / "before.npz")


READERS: dict[str, Callable[[bytes, Path], object]] = {
    "a capture": as_capture,
    "arrays": lambda content, _: parse_arrays(content),
    "tensors": lambda content, _: parse_tensors(content),
}
OVERFULL = {
    "tens of megabytes of directory": (1_000_000, None, "a directory of 49 MiB, far longer than any network's"),
    "one that claims few": (1_000_000, 3, "a directory of 49 MiB, far longer than any network's"),
    "many short ones": (MOST_ENTRIES + 1, None, "100,001 entries, of which at most 100,000 are read"),
    "many short ones that claim to be few": (MOST_ENTRIES + 1, 3, "100,001 entries"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("entries", "claims", "said"), OVERFULL.values(), ids=OVERFULL)
def test_an_overfull_archive_is_refused(
    reader: str, entries: int, claims: int | None, said: str, tmp_path: Path
) -> None:
    content = archive_of(entries, claims)
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises((Damaged, UsageError), match=said):
            READERS[reader](content, tmp_path)
        # The directory itself may be read once where it is short; nothing is made of its entries.
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 1


def test_as_many_entries_as_a_large_network_are_listed() -> None:
    with open_archive(io.BytesIO(archive_of(1000))) as archive:
        assert len(archive.infolist()) == 1000


def test_an_archive_is_read_as_ever(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=[1.0, 2.0], b=3)
    with (tmp_path / "x.npz").open("rb") as stream, open_archive(stream) as archive, ZipFile(stream) as other:
        assert archive.namelist() == other.namelist() == ["a.npy", "b.npy"]
        assert archive.read("a.npy") == other.read("a.npy") and archive.testzip() is None
