"""CIFAR-10 (Krizhevsky, 2009) in its official binary version.

Per image one label byte, then 3,072 bytes: the red, the green, the blue plane, each 32x32 row by row. The version most
tools use is a pickle, which could run code when opened; it is never opened here.
"""

import tarfile
from functools import partial
from pathlib import Path

import numpy as np

from harness.base.errors import UsageError
from harness.datasets.catalogue import Source, add, fetch_command, missing
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES_PER_BATCH = 10_000
_IMAGE_BYTES = 3 * 32 * 32
_FOLDER = "cifar-10-batches-bin"
_PICKLED_FOLDER = "cifar-10-batches-py"
_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST_BATCHES = ("test_batch.bin",)
_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"


def _find(root: Path, batches: tuple[str, ...] = _BATCHES) -> Path | None:
    folder = root / _FOLDER
    return folder if all((folder / batch).is_file() for batch in batches) else None


def _download(target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    from torchvision.datasets.utils import download_url

    archive = target / "cifar-10-binary.tar.gz"
    download_url(_URL, str(target), archive.name, _MD5)
    (target / _FOLDER).mkdir()
    # Only the expected members are read, by name, so no path in the archive is ever trusted.
    with tarfile.open(archive, "r:gz") as members:
        for batch in (*_BATCHES, *_TEST_BATCHES):
            member = f"{_FOLDER}/{batch}"
            content = members.extractfile(member) if member in members.getnames() else None
            if content is None:
                raise tarfile.TarError(f"the archive has no file {member}")
            (target / member).write_bytes(content.read())
    archive.unlink()


def _read_batch(file: DataFile) -> np.ndarray:
    """The records of one batch, (IMAGES_PER_BATCH, 1 + 3072) uint8."""
    content = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    expected = IMAGES_PER_BATCH * (1 + _IMAGE_BYTES)
    if content.size != expected:
        raise file.wrong(f"is truncated or damaged ({content.size} bytes instead of {expected})")
    return content.reshape(IMAGES_PER_BATCH, 1 + _IMAGE_BYTES)


def _load(batches: tuple[str, ...], root: Path) -> Dataset:
    folder = _find(root, batches)
    if folder is None and (root / _PICKLED_FOLDER).is_dir():
        raise UsageError(
            f"{root / _PICKLED_FOLDER} is the pickled CIFAR-10, which is never opened because a pickle can run code; "
            "get the binary version with: harness data fetch cifar10"
        )
    if folder is None:
        raise missing("cifar10", root)
    fix = fetch_command("cifar10")
    records = np.concatenate([_read_batch(DataFile(folder / batch, fix)) for batch in batches])
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return build_dataset(DataFile(folder, fix), "cifar10", images, records[:, 0], CLASS_NAMES, _SOURCE.origin)


_SOURCE = Source(
    origin="CIFAR-10 (Krizhevsky, 2009)",
    licence="none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    find=_find,
    download=_download,
    test=partial(_load, _TEST_BATCHES),
)


@add("cifar10", _SOURCE)
def load_cifar10(root: Path) -> Dataset:
    """50,000 colour images (3, 32, 32) of ten classes."""
    return _load(_BATCHES, root)
