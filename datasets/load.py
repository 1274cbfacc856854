"""From a name on the command line to a dataset."""

import os
from pathlib import Path

from harness.datasets.catalogue import DATASETS
from harness.datasets.own import load_own
from harness.datasets.record import Dataset
from harness.errors import UsageError


def data_root(option: Path | None) -> Path:
    """The data root: ``option`` (--data-root), else $HARNESS_DATA, else ~/.cache/harness. It need not exist yet.

    Raises:
        UsageError: the path is a file.
    """
    chosen = option or os.environ.get("HARNESS_DATA") or "~/.cache/harness"
    root = Path(os.path.expanduser(chosen))
    if root.exists() and not root.is_dir():
        raise UsageError(f"data root {root} is not a folder; name one with --data-root or HARNESS_DATA")
    return root


def load_dataset(name: str, root: Path) -> Dataset:
    """Load a registered dataset, or own data where ``name`` is a path that ends in .npz.

    Raises:
        UsageError: unknown name, missing, damaged or unfit data; one line that names the mend.
    """
    if name.endswith(".npz"):
        return load_own(Path(os.path.expanduser(name)))
    return DATASETS[name](root)
