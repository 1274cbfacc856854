"""Photographs of retinas, graded by severity, as in APTOS 2019: a user's own folder, for its terms forbid to fetch it.

Source: Triastcyn and Faltings, "Federated Learning with Bayesian Differential Privacy" (2019), section V. The folder
``retina`` under the data root has one folder of images per class; classes are numbered in the order of their names. An
image is cropped to the square in its middle and resized, so that networks as small as the papers' can take it.
"""

import io
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from harness.datasets.catalogue import Source, add, missing
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset

SIDE = 64
_FOLDER = "retina"
_FIX = "replace it by a JPEG or PNG, or take it out of the folder"

_SOURCE = Source(
    origin="own photographs of retinas in class folders, such as APTOS 2019 Blindness Detection",
    licence="the owner's; APTOS 2019 is under the rules of its Kaggle competition",
    find=lambda root: root / _FOLDER if (root / _FOLDER).is_dir() else None,
    by_hand=f"put the images of each class into a folder of their own below {_FOLDER}/ in the data root",
    # 500 of the 3,662 images of APTOS, as many as the paper tests on.
    held_out=500 / 3662,
)


def _photographs(folder: DataFile) -> dict[str, list[Path]]:
    """The images' paths by class, hidden files aside.

    Raises:
        UsageError: images beside the class folders, fewer than two classes, or one without images.
    """
    visible = [path for path in sorted(folder.path.iterdir()) if not path.name.startswith(".")]
    stray = next((path for path in visible if not path.is_dir()), None)
    if stray is not None:
        raise DataFile(stray).wrong("lies beside the class folders", "put it into the folder of its class")
    by_class = {
        path.name: [image for image in sorted(path.iterdir()) if not image.name.startswith(".")] for path in visible
    }
    if len(by_class) < 2:
        raise folder.wrong(f"has {len(by_class)} class folders", "give every class a folder of its own, at least two")
    empty = next((name for name, paths in by_class.items() if not paths), None)
    if empty is not None:
        raise DataFile(folder.path / empty).wrong("holds no images", "add images of this class, or remove the folder")
    return by_class


def _read(path: Path) -> np.ndarray:
    """One image (SIDE, SIDE, 3) uint8."""
    try:
        with Image.open(io.BytesIO(DataFile(path, _FIX).read_bytes())) as photograph:
            # A JPEG is decoded at a fraction of its size where that suffices.
            photograph.draft("RGB", (2 * SIDE, 2 * SIDE))
            width, height = photograph.size
            edge = min(width, height)
            left, top = (width - edge) // 2, (height - edge) // 2
            square = _in_bytes(photograph, path).crop((left, top, left + edge, top + edge))
            return np.asarray(square.resize((SIDE, SIDE), Image.Resampling.BOX))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataFile(path, _FIX).wrong("is not a readable image") from error


def _in_bytes(photograph: Image.Image, path: Path) -> Image.Image:
    """Red, green and blue from 0 to 255; greys of 16 bits are scaled, where Pillow would cut them off.

    Raises:
        UsageError: the values have no range that is known, as 32-bit integers and floats.
    """
    if not photograph.mode.startswith(("I", "F")):
        return photograph.convert("RGB")
    values = np.asarray(photograph)
    deep = photograph.mode.startswith("I;16") or photograph.format == "PNG"  # which has at most 16 bits
    if not deep:
        raise DataFile(path).wrong(
            f"has pixels of mode {photograph.mode}, whose range is not known", "save it with 8 or 16 bits a channel"
        )
    return Image.fromarray((values / 257).round().clip(0, 255).astype(np.uint8)).convert("RGB")


@lru_cache(maxsize=1)
def _read_all(marks: tuple[tuple[Path, int, int], ...]) -> np.ndarray:
    """All images (N, SIDE, SIDE, 3); training and test part are read together, and large photographs take minutes."""
    return np.stack([_read(path) for path, _, _ in marks])


def _mark(path: Path) -> tuple[Path, int, int]:
    """Return what changes when a file does."""
    facts = path.stat()
    return path, facts.st_mtime_ns, facts.st_size


@add("retina", _SOURCE)
def load_retina(root: Path) -> Dataset:
    """Colour images (3, 64, 64) of a user's own class folders."""
    if not (root / _FOLDER).is_dir():
        raise missing("retina", root)
    folder = DataFile(root / _FOLDER)
    by_class = _photographs(folder)
    images = _read_all(tuple(_mark(path) for paths in by_class.values() for path in paths))
    labels = np.repeat(np.arange(len(by_class)), [len(paths) for paths in by_class.values()])
    return build_dataset(folder, "retina", images, labels, tuple(by_class), _SOURCE.origin)
