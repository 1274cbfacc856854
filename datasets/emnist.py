"""EMNIST (Cohen et al., 2017): handwritten digits and letters in 47 classes.

Read in torchvision's raw layout, of which the Balanced split's training part is taken (112,800 images, as DP-SCAFFOLD
does: Noble et al., AISTATS 2022, section 5), else from prepared arrays of the ByMerge split's test part, the same
classes with very different sizes. Neither says who wrote an image, and the paper's users are no writers either: they
come from ``--split sorted`` or ``--split similarity``.
"""

from pathlib import Path

import numpy as np

from harness.datasets.catalogue import Source, add, fetch_command, missing
from harness.datasets.files import DataFile
from harness.datasets.mnist import read_idx
from harness.datasets.record import Dataset, build_dataset

#: Digits, capitals, and the small letters that do not look like their capital.
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
_RAW = Path("EMNIST") / "raw"
_BALANCED = ("emnist-balanced-train-images-idx3-ubyte", "emnist-balanced-train-labels-idx1-ubyte")
_BYMERGE = Path("EMNIST") / "emnist_bymerge_test.npz"


def _is_balanced(root: Path) -> bool:
    return all((root / _RAW / file).is_file() for file in _BALANCED)


def _find(root: Path) -> Path | None:
    if _is_balanced(root):
        return root / _RAW
    return root / _BYMERGE if (root / _BYMERGE).is_file() else None


def _download(target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    import torchvision

    torchvision.datasets.EMNIST(target, split="balanced", download=True)
    for path in target.rglob("*"):
        if path.is_file() and path.name not in _BALANCED:
            path.unlink()


_SOURCE = Source(
    origin="EMNIST (Cohen, Afshar, Tapson and van Schaik, 2017, from NIST Special Database 19)",
    licence="none stated; cite Cohen et al., 2017",
    find=_find,
    download=_download,
)


@add("emnist", _SOURCE)
def load_emnist(root: Path) -> Dataset:
    """Grey images (1, 28, 28) of 47 digits and letters: 112,800 balanced ones, or 116,323 of the ByMerge test part."""
    mend = fetch_command("emnist")
    if _is_balanced(root):
        images, labels = (DataFile(root / _RAW / name, mend) for name in _BALANCED)
        # The publishers' files hold every image transposed.
        pixels = read_idx(images, dimensions=3).transpose(0, 2, 1)
        part, classes = "Balanced, training part", read_idx(labels, dimensions=1)
    elif (root / _BYMERGE).is_file():
        images = DataFile(root / _BYMERGE, mend)
        pixels, classes, codes = images.read_arrays("images", "labels", "mapping")
        if codes.shape != (len(CHARACTERS),) or not np.array_equal(codes, [ord(name) for name in CHARACTERS]):
            raise images.wrong("has classes that are not those of EMNIST's merged splits")
        part = "ByMerge, test part, unbalanced"
    else:
        raise missing("emnist", root)
    if pixels.shape[1:] != (28, 28):
        raise images.wrong(f"has images of shape {pixels.shape} instead of (N, 28, 28)")
    return build_dataset(images, "emnist", pixels, classes, CHARACTERS, f"{_SOURCE.origin}; {part}")
