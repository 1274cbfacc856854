"""Downloads, only when asked: ``harness data fetch NAME``."""

import tarfile
import tempfile
import zlib
from http.client import HTTPException
from pathlib import Path

from harness.base.errors import UsageError
from harness.datasets.catalogue import DATASETS, source_of
from harness.results.atomic import move_plain

# What torchvision and scikit-learn raise on a failed, cut-off or wrong download, or on a full disk.
_FAILURES = (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError, zlib.error)


def fetch_dataset(name: str, root: Path) -> None:
    """Bring a dataset under the data root; does nothing where it already loads, and replaces damaged files.

    Raises:
        UsageError: unknown name, or the download failed.
    """
    name = DATASETS.resolve(name)
    source = source_of(name)
    download = source.download
    try:
        DATASETS[name](root)
        if source.test:
            source.test(root)
        return
    except UsageError:
        if download is None:
            raise
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Inside the root, so that every file can be put in its place by a rename.
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as folder:
            download(Path(folder))
            _move_files(Path(folder), root)
    except _FAILURES as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UsageError(
            f"dataset {name!r} could not be downloaded to {root} ({reason}); check the connection, the free space and "
            f"the folder's permissions, then repeat: harness data fetch {name}"
        ) from error


def _move_files(folder: Path, root: Path) -> None:
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        move_plain(source, root / source.relative_to(folder), "--data-root")
