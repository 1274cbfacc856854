"""MNIST (LeCun et al., 1998), Fashion-MNIST (Xiao et al., 2017) and EMNIST in torchvision's raw idx layout.

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
_CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
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
    """Return where images and labels lie: under the data root, else in Debian's folder; none where they are absent."""
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


# --------------------------------------------------------------------------------------
# EMNIST (Cohen et al., 2017): handwritten digits and letters in 47 classes, from two of its splits.
#
# ``emnist`` is the training part of the split Balanced, 112,800 images of which DP-SCAFFOLD takes 100,000 (Noble et
# al., AISTATS 2022, section 5). ``emnist-bymerge`` is the test part of the split ByMerge, the same classes in very
# different sizes: a surrogate of nearly the same number of images. Neither says who wrote an image, and the paper's
# users are no writers: they come from ``--split sorted`` (as the paper's text has it) or ``--split similarity`` (as its
# code has it).


#: Digits, capitals, and the small letters that do not look like their capital.
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
_RAW = Path("EMNIST") / "raw"
_PREPARED = Path("EMNIST") / "emnist_bymerge_test.npz"


def _raw_files(split: str, part: str, root: Path) -> list[Path]:
    """Images and labels in torchvision's raw layout; none where they are absent."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    paths = [root / _RAW / f"emnist-{split}-{part}-{kind}" for kind in kinds]
    return paths if all(path.is_file() for path in paths) else []


def _find_letters(split: str, part: str, root: Path) -> Path | None:
    if _raw_files(split, part, root):
        return root / _RAW
    return root / _PREPARED if split == "bymerge" and (root / _PREPARED).is_file() else None


def _download_letters(split: str, part: str, target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    import torchvision

    torchvision.datasets.EMNIST(target, split=split, download=True)
    kept = _raw_files(split, part, target)
    for path in target.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()


def _source(split: str, part: str, words: str) -> Source:
    return Source(
        origin=f"EMNIST (Cohen et al., 2017, from NIST Special Database 19), {words}",
        licence="none stated; cite Cohen et al., 2017",
        find=partial(_find_letters, split, part),
        download=partial(_download_letters, split, part),
    )


def _load_letters(name: str, source: Source, files: list[Path]) -> Dataset:
    fix = fetch_command(name)
    if len(files) == 2:
        file, labels = (DataFile(path, fix) for path in files)
        # The publishers' files hold every image transposed.
        pixels, classes = read_idx(file, dimensions=3).transpose(0, 2, 1), read_idx(labels, dimensions=1)
    else:
        file = DataFile(files[0], fix)
        pixels, classes, codes = file.read_arrays("images", "labels", "mapping")
        if codes.shape != (len(CHARACTERS),) or not np.array_equal(codes, [ord(name) for name in CHARACTERS]):
            raise file.wrong("has classes that are not those of EMNIST's merged splits")
    if pixels.shape[1:] != (28, 28):
        raise file.wrong(f"has images of shape {pixels.shape} instead of (N, 28, 28)")
    return build_dataset(file, name, pixels, classes, CHARACTERS, source.origin)


_BALANCED = _source("balanced", "train", "split Balanced, training part")
_BYMERGE = _source("bymerge", "test", "split ByMerge, test part, unbalanced")


@add("emnist", _BALANCED)
def load_emnist(root: Path) -> Dataset:
    """112,800 grey images (1, 28, 28) of 47 digits and letters, 2,400 each."""
    files = _raw_files("balanced", "train", root)
    if not files:
        raise missing("emnist", root)
    return _load_letters("emnist", _BALANCED, files)


@add("emnist-bymerge", _BYMERGE)
def load_emnist_bymerge(root: Path) -> Dataset:
    """116,323 grey images (1, 28, 28) of 47 digits and letters, 415 to 6,400 each: a surrogate for emnist."""
    files = _raw_files("bymerge", "test", root)
    if not files and (root / _PREPARED).is_file():
        files = [root / _PREPARED]
    if not files:
        raise missing("emnist-bymerge", root)
    return _load_letters("emnist-bymerge", _BYMERGE, files)
