"""Data that scikit-learn brings or downloads: 8x8 digits (Alpaydin and Kaynak, 1998), breast cancer, and faces."""

import io
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from PIL import Image

from harness.base.columns import Columns
from harness.datasets.catalogue import Source, add, fetch_command, missing
from harness.datasets.files import DataFile, write_arrays
from harness.datasets.record import Dataset, build_dataset

if TYPE_CHECKING:
    from sklearn.utils import Bunch

_DIGITS = Source(
    origin="UCI Optical Recognition of Handwritten Digits, test split, as bundled with scikit-learn",
    licence="CC BY 4.0",
    find=lambda root: Path("scikit-learn"),
)


@add("digits", _DIGITS)
def load_digits(root: Path) -> Dataset:
    """1,797 grey images (1, 8, 8) of ten digits; the pixels count 0 to 16 and are divided by 16."""
    bunch = _bundled()
    return Dataset(
        name="digits",
        images=torch.from_numpy((bunch.images[:, None] / 16).astype(np.float32)),
        labels=torch.from_numpy(bunch.target.astype(np.int64)),
        class_names=tuple(str(digit) for digit in bunch.target_names),
        origin=_DIGITS.origin,
    )


@cache
def _bundled() -> "Bunch":
    """Return the digits as the package holds them; reading its text takes longer than a small attack."""
    # Imported here because scikit-learn takes longer to import than most commands to run.
    from sklearn import datasets

    return cast("Bunch", datasets.load_digits())  # not the pair that it returns on demand


# --------------------------------------------------------------------------------------
# Breast Cancer Wisconsin (Diagnostic) (Wolberg, Mangasarian, Street and Street, 1993), a table of 30 measurements.


_CANCER = Source(
    origin="UCI Breast Cancer Wisconsin (Diagnostic), as bundled with scikit-learn",
    licence="CC BY 4.0",
    find=lambda root: Path("scikit-learn"),
    held_out=0.25,
    table=True,
)


@add("cancer", _CANCER)
def load_cancer(root: Path) -> Dataset:
    """A table of 569 rows with 30 continuous columns, each scaled to [0, 1], and two classes."""
    # Imported here because scikit-learn takes longer to import than most commands to run.
    from sklearn import datasets
    from sklearn.utils import Bunch

    bunch = cast(Bunch, datasets.load_breast_cancer())  # not the pair that it returns on demand
    low, high = bunch.data.min(axis=0), bunch.data.max(axis=0)
    features = ((bunch.data - low) / (high - low)).astype(np.float32)
    return Dataset(
        name="cancer",
        images=torch.from_numpy(features)[:, None, None],
        labels=torch.from_numpy(bunch.target.astype(np.int64)),
        class_names=tuple(str(name) for name in bunch.target_names),
        origin=_CANCER.origin,
        columns=Columns(tuple(str(name) for name in bunch.feature_names)),
        # The ranges that scikit-learn publishes beside the data are rounded; these are the data's own.
        fitted_to="the smallest and largest values of its own private rows, computed without noise",
    )


# --------------------------------------------------------------------------------------
# Labeled Faces in the Wild (Huang et al., 2007, 2012), cropped to 32x32 colour as in the papers' code.
#
# People with at least 20 photographs: 62 people, 3,023 images, unbalanced (20 to 530 each). Read from the prepared
# arrays, or from the photographs in the folder that scikit-learn's ``fetch_lfw_people`` leaves. That function itself is
# not used to read them, because it opens a cache of pickles that lies beside the photographs.


_PREPARED = Path("LFW") / "lfw_people_min20_color_32x32.npz"
_PHOTOGRAPHS = Path("lfw_home") / "lfw_funneled"
_FEWEST_PHOTOGRAPHS = 20
_CROP = slice(61, 189)
_SIDE = 32


def _find(root: Path) -> Path | None:
    if (root / _PREPARED).is_file():
        return root / _PREPARED
    return root / _PHOTOGRAPHS if (root / _PHOTOGRAPHS).is_dir() else None


def _download(target: Path) -> None:
    # Imported here because scikit-learn takes longer to import than most commands to run.
    from sklearn.datasets import fetch_lfw_people

    # scikit-learn knows the mirror and the checksum. Its folder is fresh, so the only cache it opens is its own.
    with tempfile.TemporaryDirectory(dir=target) as home:
        fetch_lfw_people(
            data_home=home,
            min_faces_per_person=_FEWEST_PHOTOGRAPHS,
            color=True,
            slice_=(_CROP, _CROP),
            resize=_SIDE / (_CROP.stop - _CROP.start),
        )
        images, labels, names = read_photographs(DataFile(Path(home) / _PHOTOGRAPHS, fetch_command("lfw")))
    write_arrays(target / _PREPARED, images=images, target=labels, target_names=np.array(names))


_FACES = Source(
    origin="Labeled Faces in the Wild, deep-funneled, people with at least 20 images (Huang et al., 2007, 2012)",
    licence="none stated; photographs of real people, for research; cite Huang et al., 2007 and 2012",
    find=_find,
    download=_download,
    held_out=0.25,
)


def read_photographs(folder: DataFile) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Crop and resize the photographs as scikit-learn does, in its order.

    Returns:
        images (N, 32, 32, 3) uint8, labels (N,) int64, the people's names sorted.

    Raises:
        UsageError: nobody has enough photographs, or one cannot be read.
    """
    folders = [person for person in sorted(folder.path.iterdir()) if person.is_dir()]
    photographs = {person.name.replace("_", " "): sorted(person.iterdir()) for person in folders}
    photographs = {name: paths for name, paths in photographs.items() if len(paths) >= _FEWEST_PHOTOGRAPHS}
    if not photographs:
        raise folder.wrong(f"has nobody with {_FEWEST_PHOTOGRAPHS} photographs")
    names = sorted(photographs)
    images = np.stack([_read_face(DataFile(path, folder.fix)) for paths in photographs.values() for path in paths])
    labels = np.repeat([names.index(name) for name in photographs], [len(paths) for paths in photographs.values()])
    # scikit-learn's own shuffle, so that image k is the same image in both.
    order = np.arange(len(images))
    np.random.RandomState(42).shuffle(order)
    return images[order], labels[order], tuple(names)


def _read_face(file: DataFile) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(file.read_bytes())) as photograph:
            face = photograph.convert("RGB").crop((_CROP.start, _CROP.start, _CROP.stop, _CROP.stop))
            return np.asarray(face.resize((_SIDE, _SIDE)))
    except (OSError, Image.DecompressionBombError) as error:
        raise file.wrong("is not a readable photograph") from error


@add("lfw", _FACES)
def load_lfw(root: Path) -> Dataset:
    """3,023 colour images (3, 32, 32) of 62 people."""
    found = _find(root)
    if found is None:
        raise missing("lfw", root)
    file = DataFile(found, fetch_command("lfw"))
    if found.is_dir():
        images, labels, names = read_photographs(file)
    else:
        images, labels, names = file.read_arrays("images", "target", "target_names")
    if images.shape[1:] != (_SIDE, _SIDE, 3) or np.ndim(names) != 1:
        raise file.wrong(f"has images of shape {images.shape} instead of (N, {_SIDE}, {_SIDE}, 3), or no list of names")
    return build_dataset(file, "lfw", images, labels, tuple(str(name) for name in names), _FACES.origin)
