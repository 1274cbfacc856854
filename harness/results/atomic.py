"""Files appear whole or not at all."""

import os
import tempfile
from pathlib import Path

from harness.errors import OutputError


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, creating its folder; a crash leaves the old file or none, never half of one.

    Raises:
        OutputError: the folder cannot be created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_then_rename(path, content)
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise OutputError(f"cannot write {str(path)!r} ({problem}); choose another folder with --out") from error


def _write_then_rename(path: Path, content: bytes) -> None:
    # Renaming is atomic only inside one file system, hence the temporary name in the same folder.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".partial", delete=False) as stream:
        temporary = Path(stream.name)
        try:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            # A temporary file is private to its owner; results are meant to be shared.
            temporary.chmod(0o644)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
