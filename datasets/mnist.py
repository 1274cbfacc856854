"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017) in torchvision's raw idx layout, training split.

The idx format is described at http://yann.lecun.com/exdb/mnist/: two zero bytes, a type byte (8: unsigned byte), the
number of dimensions, each dimension as a big-endian 32-bit integer, then the values.
"""

import struct
from functools import partial
from pathlib import Path

import numpy as np

from harness.datasets.catalogue import Source, add, fetch_command, missing, source_of
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset

DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_IMAGES, _LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def read_idx(file: DataFile, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes with the given number of dimensions.

    Raises:
        UsageError: another format, or another length than the header announces.
    """
    content = file.read_bytes()
    header = 4 * (1 + dimensions)
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise file.wrong(f"is not an unpacked idx file of {dimensions}-dimensional bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=object):
        raise file.wrong(f"is truncated or damaged ({values.size} values for shape {shape})")
    return values.reshape(shape)


def _find(folder: str, root: Path) -> Path | None:
    raw = root / folder / "raw"
    return raw if (raw / _IMAGES).is_file() and (raw / _LABELS).is_file() else None


def _download(folder: str, target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    import torchvision

    getattr(torchvision.datasets, folder)(target, download=True)
    for archive in target.rglob("*.gz"):
        archive.unlink()


def _load(name: str, folder: str, class_names: tuple[str, ...], root: Path) -> Dataset:
    raw = _find(folder, root)
    if raw is None:
        raise missing(name, root)
    images, labels = (DataFile(raw / file, fetch_command(name)) for file in (_IMAGES, _LABELS))
    pixels, classes = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    return build_dataset(images, name, pixels, classes, class_names, source_of(name).origin)


def _source(folder: str, origin: str, licence: str) -> Source:
    return Source(origin, licence, find=partial(_find, folder), download=partial(_download, folder))


@add("mnist", _source("MNIST", "MNIST training set (LeCun, Cortes, Burges)", "CC BY-SA 3.0, as usually quoted"))
def load_mnist(root: Path) -> Dataset:
    """60,000 grey images (1, 28, 28) of ten digits."""
    return _load("mnist", "MNIST", DIGITS, root)


@add("fashion-mnist", _source("FashionMNIST", "Fashion-MNIST training set (Zalando Research)", "MIT"))
def load_fashion_mnist(root: Path) -> Dataset:
    """60,000 grey images (1, 28, 28) of ten kinds of clothes."""
    return _load("fashion-mnist", "FashionMNIST", _CLOTHES, root)
