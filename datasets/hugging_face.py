"""Datasets of the Hugging Face hub: ``hf:NAME@REVISION``, whose images and labels lie under the data root.

``harness data fetch hf:NAME[@REVISION]`` is all that asks the hub. It keeps the commit that the revision was then, so
that a row names what it was measured on. No code of a dataset is run: the library from version 4 on has no such thing.
"""

import importlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UsageError, in_one_line
from harness.base.registry import installed
from harness.datasets.files import DataFile, write_arrays
from harness.datasets.record import Dataset, build_dataset
from harness.results.files import MOST_BYTES

PREFIX = "hf:"
_FIX = "pip install 'gradient-leakage-harness[hf]'"
_NAME = re.compile(r"hf:((?:[\w.-]+/)?[\w.-]+)(?:@([\w.-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_of_hub(name: str) -> bool:
    """Return whether the name of a dataset is one of the hub."""
    return name.startswith(PREFIX)


def hub_name(name: str) -> str:
    """The name with its revision, which a row needs.

    Raises:
        UsageError: it is no such name, or has no revision of its own.
    """
    repository, revision = _parts(name)
    if revision is None or not _COMMIT.fullmatch(revision):
        raise UsageError(
            f"{name!r} names no commit, and data on the hub change; harness data fetch {PREFIX}{repository} prints "
            "the name with its commit"
        )
    return name


def _parts(name: str) -> tuple[str, str | None]:
    found = _NAME.fullmatch(name)
    if found is None or ".." in name:
        raise UsageError(f"{name!r} is no name of the hub; write hf:NAME or hf:OWNER/NAME, and @REVISION behind it")
    return found[1], found[2]


def _place(root: Path, name: str) -> Path:
    repository, revision = _parts(name)
    return root / "hf" / f"{repository.replace('/', '--')}@{revision}.npz"


def load_of_hub(name: str, root: Path) -> Dataset:
    """Read what was fetched.

    Raises:
        UsageError: it was not, or the file is damaged.
    """
    path = _place(root, hub_name(name))
    fix = f"get it with: harness data fetch {name}"
    if not os.path.isfile(path):
        raise UsageError(f"dataset {name!r} is not under {root}; {fix} (or name its folder with --data-root)")
    images, labels = DataFile(path, fix).read_arrays("images", "labels")
    return build_dataset(DataFile(path, fix), name, images, labels, None, f"the train split of {name}")


def fetch_of_hub(name: str, root: Path) -> str:
    """Bring the train split of a dataset under the data root. Returns its name with the commit.

    Raises:
        UsageError: no such dataset, no library, no answer, or no images with labels in it.
    """
    repository, revision = _parts(name)
    library, hub = _libraries()
    try:
        commit = hub.HfApi().dataset_info(repository, revision=revision).sha
        pinned = f"{PREFIX}{repository}@{commit}"
        table = library.load_dataset(repository, split="train", revision=commit)
        found = _Table.of(table)
    except UsageError:
        raise
    except Exception as error:  # of the network, of a server, of a file of anybody's
        raise UsageError(
            f"dataset {name!r} could not be loaded ({in_one_line(error)[:200]}); check its name and the connection; "
            f"repeat harness data fetch {name}"
        ) from error
    images, labels = found.arrays(name)
    path = _place(root, pinned)
    build_dataset(DataFile(path), pinned, images, labels, None, "the hub")  # refuses what no run could take
    try:
        write_arrays(path, images=images, labels=labels)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); name another --data-root") from error
    return pinned


def _libraries() -> tuple[Any, Any]:
    try:
        with installed("datasets"):
            library, hub = importlib.import_module("datasets"), importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UsageError(f"datasets of the hub need the package datasets; {_FIX}") from error
    if not hasattr(library, "load_dataset") or not hasattr(library, "ClassLabel"):
        where = getattr(library, "__file__", None) or next(iter(getattr(library, "__path__", [])), "elsewhere")
        raise UsageError(f"`datasets` is not Hugging Face's but {where}; start in another folder, or {_FIX}")
    if int(str(library.__version__).partition(".")[0]) < 4:
        raise UsageError(f"datasets {library.__version__} may run code of the hub; take version 4 or later: {_FIX}")
    return library, hub


@dataclass(frozen=True)
class _Table:
    """Rows of the hub, and the names of the columns that hold an image and its class."""

    rows: Any
    image: str
    label: str

    @classmethod
    def of(cls, rows: Any) -> "_Table":
        kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
        images = [column for column, kind in kinds.items() if kind == "Image"]
        labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
        if len(images) != 1 or not labels:
            told = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
            raise UsageError(
                f"only images with a class are read from the hub, and its columns are {told}; save other data as "
                ".npz, .csv or .parquet and give the path"
            )
        return cls(rows, images[0], labels[0])

    def arrays(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (N, H, W) or (N, H, W, 3) in uint8, and labels (N,). Raises UsageError where they differ in size."""
        images, labels, size = [], [], 0
        for row in self.rows:
            picture = row[self.image]
            one = np.asarray(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"), np.uint8)
            if images and one.shape != images[0].shape:
                raise UsageError(f"{name!r} has images of several sizes; save them in one size as .npz, and give that")
            size += one.nbytes
            if size > MOST_BYTES:
                raise UsageError(f"{name!r} has more than {MOST_BYTES // 2**20} MiB of images; save a part as .npz")
            images.append(one)
            labels.append(row[self.label])
        if not images:
            raise UsageError(f"{name!r} has no rows in its train split; choose another dataset")
        return np.stack(images), np.asarray(labels, np.int64)
