"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017) in torchvision's raw idx layout.

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
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


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


def _find(folder: str, root: Path, files: tuple[str, str] = _TRAIN) -> Path | None:
    raw = root / folder / "raw"
    return raw if all((raw / file).is_file() for file in files) else None


def _download(folder: str, target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    import torchvision

    getattr(torchvision.datasets, folder)(target, download=True)
    for archive in target.rglob("*.gz"):
        archive.unlink()


def _load(name: str, folder: str, class_names: tuple[str, ...], files: tuple[str, str], root: Path) -> Dataset:
    raw = _find(folder, root, files)
    if raw is None:
        raise missing(name, root)
    images, labels = (DataFile(raw / file, fetch_command(name)) for file in files)
    pixels, classes = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    return build_dataset(images, name, pixels, classes, class_names, source_of(name).origin)


_load_digits = partial(_load, "mnist", "MNIST", DIGITS)
_load_clothes = partial(_load, "fashion-mnist", "FashionMNIST", _CLOTHES)

_MNIST = Source(
    origin="MNIST (LeCun, Cortes, Burges)",
    licence="CC BY-SA 3.0, as usually quoted",
    find=partial(_find, "MNIST"),
    download=partial(_download, "MNIST"),
    test=partial(_load_digits, _TEST),
)
_FASHION = Source(
    origin="Fashion-MNIST (Zalando Research)",
    licence="MIT",
    find=partial(_find, "FashionMNIST"),
    download=partial(_download, "FashionMNIST"),
    test=partial(_load_clothes, _TEST),
)


@add("mnist", _MNIST)
def load_mnist(root: Path) -> Dataset:
    """60,000 grey images (1, 28, 28) of ten digits."""
    return _load_digits(_TRAIN, root)


@add("fashion-mnist", _FASHION)
def load_fashion_mnist(root: Path) -> Dataset:
    """60,000 grey images (1, 28, 28) of ten kinds of clothes."""
    return _load_clothes(_TRAIN, root)
