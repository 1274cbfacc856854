"""EMNIST (Cohen et al., 2017): handwritten digits and letters in 47 classes, from two of its splits.

``emnist`` is the training part of the split Balanced, 112,800 images of which DP-SCAFFOLD takes 100,000 (Noble et al.,
AISTATS 2022, section 5). ``emnist-bymerge`` is the test part of the split ByMerge, the same classes in very different
sizes: a surrogate of nearly the same number of images. Neither says who wrote an image, and the paper's users are no
writers: they come from ``--split sorted`` (as the paper's text has it) or ``--split similarity`` (as its code has it).
"""

from functools import partial
from pathlib import Path

import numpy as np

from harness.datasets.catalogue import Source, add, fetch_command, missing
from harness.datasets.files import DataFile
from harness.datasets.mnist import read_idx
from harness.datasets.record import Dataset, build_dataset

#: Digits, capitals, and the small letters that do not look like their capital.
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
_RAW = Path("EMNIST") / "raw"
_PREPARED = Path("EMNIST") / "emnist_bymerge_test.npz"


def _raw_files(split: str, part: str, root: Path) -> list[Path]:
    """Images and labels in torchvision's raw layout; none where they are absent."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    paths = [root / _RAW / f"emnist-{split}-{part}-{kind}" for kind in kinds]
    return paths if all(path.is_file() for path in paths) else []


def _find(split: str, part: str, root: Path) -> Path | None:
    if _raw_files(split, part, root):
        return root / _RAW
    return root / _PREPARED if split == "bymerge" and (root / _PREPARED).is_file() else None


def _download(split: str, part: str, target: Path) -> None:
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
        find=partial(_find, split, part),
        download=partial(_download, split, part),
    )


def _load(name: str, source: Source, files: list[Path]) -> Dataset:
    mend = fetch_command(name)
    if len(files) == 2:
        file, labels = (DataFile(path, mend) for path in files)
        # The publishers' files hold every image transposed.
        pixels, classes = read_idx(file, dimensions=3).transpose(0, 2, 1), read_idx(labels, dimensions=1)
    else:
        file = DataFile(files[0], mend)
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
    return _load("emnist", _BALANCED, files)


@add("emnist-bymerge", _BYMERGE)
def load_emnist_bymerge(root: Path) -> Dataset:
    """116,323 grey images (1, 28, 28) of 47 digits and letters, 415 to 6,400 each: a surrogate for emnist."""
    files = _raw_files("bymerge", "test", root)
    if not files and (root / _PREPARED).is_file():
        files = [root / _PREPARED]
    if not files:
        raise missing("emnist-bymerge", root)
    return _load("emnist-bymerge", _BYMERGE, files)
