"""From a name on the command line to a dataset."""

import os
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR

from harness.base.errors import UsageError
from harness.datasets.catalogue import DATASETS, OWN, source_of
from harness.datasets.own import load_own
from harness.datasets.parts import Part, take_part
from harness.datasets.record import Dataset


def data_root(option: str | Path | None) -> Path:
    """The data root: ``option`` (--data-root), else $HARNESS_DATA, else ~/.cache/harness. It need not exist yet.

    Raises:
        UsageError: the path is a file, or nothing can be looked for there.
    """
    chosen = option or os.environ.get("HARNESS_DATA") or "~/.cache/harness"
    root = Path(os.path.expanduser(chosen))
    try:
        problem = None if S_ISDIR(root.stat().st_mode) else "is not a folder"
    except FileNotFoundError:
        problem = None
    except (OSError, ValueError) as error:  # such as a name that no file can have
        problem = f"cannot be looked into ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise UsageError(f"data root {str(root)!r} {problem}; name a folder with --data-root or HARNESS_DATA")
    return root


# How the arrays of a file of another kind become an .npz, by its ending.
_CONVERT = {
    ".npy": "images = numpy.load(OLD), labels from a file of their own",
    ".parquet": "table = pandas.read_parquet(OLD), then numpy.stack of its columns",
    ".csv": "table = pandas.read_csv(OLD), then its columns as images (rows, 1, features) from 0 to 1",
    ".pt": "images, labels = torch.load(OLD, weights_only=True)",
    ".pth": "images, labels = torch.load(OLD, weights_only=True)",
    ".safetensors": "arrays = safetensors.numpy.load_file(OLD)",
    ".h5": "with h5py.File(OLD), then its arrays",
}


def dataset_name(name: str) -> str:
    """The registered name behind ``name``; of a path that ends in .npz the path.

    Raises:
        UsageError: unknown, or a path of another kind of file, with how to convert it.
    """
    if name.endswith(".npz"):
        return name
    ending = Path(name).suffix.lower()
    if ending in _CONVERT or os.sep in name:
        how = f" with {_CONVERT[ending]}" if ending in _CONVERT else ""
        raise UsageError(
            f"{name!r} is no .npz file, which own data are read from; convert it{how}: "
            "numpy.savez('NEW.npz', images=images, labels=labels)"
        )
    return DATASETS.resolve(name)


def load_dataset(name: str, root: Path, part: Part | None = None) -> Dataset:
    """Load a registered dataset, or own data where ``name`` is a path that ends in .npz.

    Args:
        name: a registered name, or a path.
        root: the data root.
        part: ``train`` or ``test``, two parts that share no example, for training and its accuracy: the publishers'
            own (MNIST, Fashion-MNIST, CIFAR-10), else a fixed stratified split that holds out the share stated in the
            dataset's source (a quarter of LFW and the tables as in the papers, a fifth of everything else). None, which
            attacks use, is all that the loader reads: the publishers' training part, or all examples where there is
            none.

    Raises:
        UsageError: unknown name, missing, damaged or unfit data; one line that names the mend.
    """
    own = (name := dataset_name(name)).endswith(".npz")
    source = OWN if own else source_of(name)
    if part == "test" and source.test:
        dataset = source.test(root)
    else:
        dataset = load_own(Path(os.path.expanduser(name))) if own else DATASETS[name](root)
        if part is None:
            return dataset
        if not source.test:
            dataset = take_part(dataset, part, source.held_out)
    return replace(dataset, origin=f"{dataset.origin}, {part} part")
