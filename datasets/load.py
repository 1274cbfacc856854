"""From a name on the command line to a dataset."""

import math
import os
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR
from typing import Literal

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.datasets.catalogue import DATASETS, OWN, source_of
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset

# A user's own data: an .npz file with the arrays `images` and `labels`.


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


# A training and a held-out test part of a dataset that its publishers did not divide themselves.

Part = Literal["train", "test"]


def take_part(dataset: Dataset, part: Part, held_out: float, purpose: str = "held out") -> Dataset:
    """The examples of one part, in the dataset's order; a pure function of the dataset, the share and the purpose.

    Args:
        dataset: the whole dataset of N examples.
        part: ``train`` or ``test``; together they are the whole, and they share nothing.
        held_out: share of the examples in the test part, in (0, 1); ceil(share * N) examples are held out.
        purpose: what the division is for; divisions for other purposes are independent of it.
    """
    test = torch.zeros(len(dataset.labels), dtype=torch.bool)
    test[_held_out(dataset, held_out, purpose)] = True
    return dataset.take((test if part == "test" else ~test).nonzero()[:, 0])


def _held_out(dataset: Dataset, share: float, purpose: str) -> Tensor:
    """Positions drawn at random, from every class of every natural client in proportion to its size.

    Each example stands at a random place of its class, scaled to [0, 1]; the first ones of all classes are held out.
    """
    strata = dataset.labels if dataset.clients is None else dataset.clients * dataset.num_classes + dataset.labels
    order = torch.randperm(len(dataset.labels), generator=generator(purpose, dataset.name))
    places = torch.empty(len(order), dtype=torch.float64)
    for stratum in strata.unique().tolist():
        members = order[strata[order] == stratum]
        places[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    first = places[order].argsort(stable=True)[: math.ceil(share * len(order))]
    return order[first]


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
