"""A user's own data: an .npz file with the arrays ``images`` and ``labels``."""

import os
from pathlib import Path

from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset


def load_own(path: Path) -> Dataset:
    """Read an .npz file; ``build_dataset`` says which shapes, types and ranges it may hold.

    The dataset is named by the file's name alone, so that results do not depend on where it lies.

    Raises:
        UsageError: missing or damaged file, or arrays that are no labelled images.
    """
    file = DataFile(path)
    if not os.path.isfile(path):
        raise file.wrong("is not a file", "give the path of an .npz file with arrays images and labels")
    images, labels = file.read_arrays("images", "labels")
    return build_dataset(file, path.name, images, labels, None, f"own data, {path.name}")
