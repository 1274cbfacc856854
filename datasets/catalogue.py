"""The names of the datasets, and what can be said of each without loading it."""

import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from harness.base.errors import UsageError
from harness.base.registry import Registry
from harness.datasets.hugging_face import fetch_of_hub, is_of_hub
from harness.datasets.own_table import PARQUET, is_table
from harness.datasets.record import Dataset
from harness.results.atomic import move_plain

Loader = Callable[[Path], Dataset]

#: Loaders by name: each takes the data root and returns the Dataset, or raises UsageError.
DATASETS: Registry[Loader] = Registry("dataset", "harness.datasets")


@dataclass(frozen=True)
class Source:
    """Source of a dataset.

    Attributes:
        origin: one line on the images' origin.
        licence: the licence as its publishers state it.
        find: data root -> where the data lies, None where it is absent; looks at names only, never into files.
        download: lays the files out in the (empty) folder it is given as they lie under a data root;
            None where there is nothing to download.
        by_hand: how else the data can be had, as words that follow "or"; empty where there is no other way.
        test: loads the publishers' own test part; None where they made none.
        held_out: share of the examples that is set aside for testing where there is no such part.
        table: whether the examples are rows of a table instead of images. text: whether they are texts.
    """

    origin: str
    licence: str
    find: Callable[[Path], Path | None]
    download: Callable[[Path], None] | None = None
    by_hand: str = ""
    test: Loader | None = None
    held_out: float = 0.2
    table: bool = False
    text: bool = False


@dataclass(frozen=True)
class DatasetStatus:
    """One line of ``harness data status``: ``where`` is a folder or file, ``obtain`` how to get the data."""

    name: str
    available: bool
    origin: str
    licence: str
    where: str
    obtain: str


OWN = Source("own data", "the owner's", find=lambda root: root)
OWN_TEXTS = Source("own texts", "the owner's", find=lambda root: root, text=True)
OWN_TABLE = Source("own table", "the owner's", find=lambda root: root, table=True)
IMAGE_ENDING, COLUMNS_ENDINGS = ".npz", (".csv", PARQUET)
_ELSEWHERE = Source("an installed package", "see that package", find=lambda root: root)
_HUB = Source("the Hugging Face hub", "see the dataset's card", find=lambda root: root)
_sources: dict[str, Source] = {}


def add(name: str, source: Source) -> Callable[[Loader], Loader]:
    """Decorator that registers a loader under ``name`` together with its ``source``."""

    def decorate(loader: Loader) -> Loader:
        _sources[name] = source
        return DATASETS.register(name)(loader)

    return decorate


def is_own_data(name: str) -> bool:
    """Return whether the name of a dataset is that of a user's own file."""
    return name.endswith((IMAGE_ENDING, *COLUMNS_ENDINGS))


def source_of(name: str) -> Source:
    """The source of a registered dataset or own file; a dataset from another package may have none, and gets a
    placeholder. The head of an own file says whether it holds texts or a table."""
    if name.endswith(COLUMNS_ENDINGS):
        return OWN_TABLE if is_table(Path(os.path.expanduser(name))) else OWN_TEXTS
    if is_own_data(name):
        return OWN
    return _HUB if is_of_hub(name) else _sources.get(name, _ELSEWHERE)


def default_model(name: str) -> str:
    """The network that a dataset is attacked with unless one is named: one that makes sense on it."""
    source = source_of(name)
    return "text_transformer" if source.text else "mlp2" if source.table else "lenet"


def fetch_command(name: str) -> str:
    """The fix for missing or damaged files of a dataset that can be downloaded."""
    return f"get it with: harness data fetch {name}"


def missing(name: str, root: Path) -> UsageError:
    """The error for a dataset that is not under the data root."""
    source = source_of(name)
    ways = " or ".join(way for way in (source.download and fetch_command(name), source.by_hand) if way)
    return UsageError(f"dataset {name!r} is not under {root}; {ways} (or name its folder with --data-root)")


def dataset_status(root: Path) -> list[DatasetStatus]:
    """Return the datasets under the data root, one entry per registered dataset, sorted by name; loads nothing."""
    return [_status(name, root) for name in DATASETS]


def _status(name: str, root: Path) -> DatasetStatus:
    source = source_of(name)
    found = source.find(root)
    ways = [f"harness data fetch {name}" if source.download else "", source.by_hand]
    return DatasetStatus(
        name=name,
        available=found is not None,
        origin=source.origin,
        licence=source.licence,
        where=str(found or root),
        obtain=" or ".join(way for way in ways if way) or "installed with its package",
    )


# Downloads, only when asked: `harness data fetch NAME`.

# What torchvision and scikit-learn raise on a failed, cut-off or wrong download, or on a full disk.
_FAILURES = (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError, zlib.error)


def fetch_dataset(name: str, root: Path) -> str:
    """Bring a dataset under the data root; does nothing where it already loads, and replaces damaged files.

    Returns:
        The name that loads it: of the hub's data the one with the commit.

    Raises:
        UsageError: unknown name, or the download failed.
    """
    if is_of_hub(name):
        return fetch_of_hub(name, root)
    name = DATASETS.resolve(name)
    source = source_of(name)
    download = source.download
    try:
        DATASETS[name](root)
        if source.test:
            source.test(root)
        return name
    except UsageError:
        if download is None:
            raise
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Inside the root, so that every file can be put in its place by a rename.
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as folder:
            download(Path(folder))
            _move_files(Path(folder), root)
    except _FAILURES as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UsageError(
            f"dataset {name!r} could not be downloaded to {root} ({reason}); check the connection, the free space and "
            f"the folder's permissions, then repeat: harness data fetch {name}"
        ) from error
    return name


def _move_files(folder: Path, root: Path) -> None:
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        move_plain(source, root / source.relative_to(folder), "--data-root")
