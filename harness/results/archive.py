"""Opening a zip archive that may come from anywhere: its directory is bounded before anything is made of it."""

import io
from typing import BinaryIO
from zipfile import ZipFile

from harness.results.damaged import Damaged

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
