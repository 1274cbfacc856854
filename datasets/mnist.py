"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017) in torchvision's raw idx layout.

The idx format is described at http://yann.lecun.com/exdb/mnist/: two zero bytes, a type byte (8: unsigned byte), the
number of dimensions, each dimension as a big-endian 32-bit integer, then the values. Fashion-MNIST is also read as
Debian's package ``dataset-fashion-mnist`` installs it: the same files, compressed.
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
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read_idx(file: DataFile, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes with the given number of dimensions.

    Raises:
        UsageError: another format, or another length than the header announces.
    """
    content = file.read_unpacked()
    header = 4 * (1 + dimensions)
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise file.wrong(f"is not an unpacked idx file of {dimensions}-dimensional bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=object):
        raise file.wrong(f"is truncated or damaged ({values.size} values for shape {shape})")
    return values.reshape(shape)


def _files(folder: str, root: Path, names: tuple[str, str]) -> list[Path]:
    """Where images and labels lie: under the data root, else in Debian's folder; none where they are absent."""
    places = [[root / folder / "raw" / name for name in names]]
    if folder == "FashionMNIST":
        places.append([DEBIAN_FOLDER / f"{name}.gz" for name in names])
    return next((paths for paths in places if all(path.is_file() for path in paths)), [])


def _find(folder: str, root: Path) -> Path | None:
    return next((path.parent for path in _files(folder, root, _TRAIN)), None)


def _download(folder: str, target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    import torchvision

    getattr(torchvision.datasets, folder)(target, download=True)
    for archive in target.rglob("*.gz"):
        archive.unlink()


def _load(name: str, folder: str, class_names: tuple[str, ...], files: tuple[str, str], root: Path) -> Dataset:
    paths = _files(folder, root, files)
    if not paths:
        raise missing(name, root)
    images, labels = (DataFile(path, fetch_command(name)) for path in paths)
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
    by_hand="install Debian's package dataset-fashion-mnist",
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
