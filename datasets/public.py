"""Public data of the same kind as the victims': what an attacker may know of the world without knowing a victim."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor
from torch.nn import functional

from harness.base.errors import UsageError
from harness.datasets.catalogue import is_own_data, source_of
from harness.datasets.load import dataset_name, load_dataset, take_part
from harness.datasets.record import Dataset

# Which examples of one dataset another one holds too, be it in another precision or slightly changed.

NEAR = 0.02
"""Root mean square difference of two images up to which they count as the same: a fifth of what makes a strict success,
and more than saving with loss or noise that nobody sees leaves. Of the test parts of MNIST and CIFAR-10 no image is as
near to one of the training part, of LFW's halves two are."""
_SHARE = 0.1
"""Of the standard deviation of all numbers, at most which it is: features may be smaller than pixels are."""
_CELLS, _TOGETHER = 4, 256


def among(public: Dataset, private: Dataset) -> Tensor:
    """(N,) whether each public example is among the private ones.

    Rows of tables and texts have to be equal, images to be within :data:`NEAR` of each other.
    """
    known = set(_digests(private))
    equal = torch.tensor([digest in known for digest in _digests(public)], dtype=torch.bool)
    if not _of_images(public) or not len(public.images) or not len(private.images):
        return equal
    return equal | _near(public.images, private.images)


def first_copies(dataset: Dataset) -> Tensor:
    """(N,) the place of the first example that each one is a copy of, its own where there is none before it.

    Copies are of one class, and as alike as :func:`among` says.
    """
    rows, places = dataset.images.flatten(1).double(), torch.arange(len(dataset.labels))
    reach = _reach(dataset.images) if _of_images(dataset) else 0.0
    for label in dataset.labels.unique():
        firsts: list[int] = []
        for place in (dataset.labels == label).nonzero()[:, 0].tolist():
            apart = (rows[firsts] - rows[place]).square().mean(1) if firsts else torch.ones(1)
            if float(apart.min()) <= reach**2:
                places[place] = firsts[int(apart.argmin())]
            else:
                firsts.append(place)
    return places


def _of_images(dataset: Dataset) -> bool:
    return dataset.columns is None and dataset.words is None


def _digests(dataset: Dataset) -> list[bytes]:
    """One per example: of a table's row and a text as it is, of an image at 8 bits, whatever it was saved in."""
    rows = dataset.images.flatten(1)
    kept = (rows * 255).round().to(torch.uint8) if _of_images(dataset) else rows + 0.0
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in kept.numpy()]


def _near(some: Tensor, others: Tensor) -> Tensor:
    """(N,) whether any of ``others`` is near each of ``some``.

    Averages over cells differ by no more than the pixels do, so that only images whose averages are near are compared.
    """
    reach, tree = _reach(others), KDTree(_averages(others))
    near, rows, there = torch.zeros(len(some), dtype=torch.bool), some.flatten(1), others.flatten(1)
    for places in torch.arange(len(some)).split(_TOGETHER):
        coarse = _averages(some[places])
        candidates = tree.query_ball_point(coarse, reach * coarse.shape[1] ** 0.5)
        for place, found in zip(places.tolist(), candidates, strict=True):
            if found:
                near[place] = bool(((rows[place] - there[found]).square().mean(1) <= reach**2).any())
    return near


def _reach(images: Tensor) -> float:
    """Return how far apart two images may be and still be copies."""
    return min(NEAR, _SHARE * float(images.double().std(correction=0)))


def _averages(images: Tensor) -> NDArray[np.float64]:
    """(N, cells) means of images (N, C, H, W) over the channels and cells of equal size."""
    height, width = (size // _largest_divisor(size) for size in images.shape[-2:])
    return functional.avg_pool2d(images.double().mean(1, keepdim=True), (height, width)).flatten(1).numpy()


def _largest_divisor(size: int) -> int:
    """Into how many equal cells, up to ``_CELLS``, a side can be divided."""
    return next(cells for cells in range(_CELLS, 0, -1) if size % cells == 0)


NONE, AUTO = "none", "auto"
FEWEST, FEWEST_OF_A_CLASS = 20, 2
_WIDEST = 3.0


@dataclass(frozen=True, eq=False)
class Sides:
    """Data that victims and decoys are drawn from, and data that is public; no example is in both."""

    private: Dataset
    public: Dataset


def choose_public(choice: str) -> str:
    """The canonical name of what ``--prior`` says: none, auto, a registered dataset or an own file.

    Raises:
        UsageError: there is no such dataset.
    """
    return choice if choice in (NONE, AUTO) else dataset_name(choice)


def divide(dataset: Dataset, name: str, choice: str, root: Path) -> Sides:
    """A dataset and public data beside it.

    ``auto`` is the publishers' test part, less what it shares with their training part. Where they made none, a fixed
    stratified half of the examples is public and no longer private; examples that the other half holds too stay out of
    it. Any other choice leaves the whole dataset private.

    Args:
        dataset: all of what ``name`` loads.
        name: a registered name, or an own file.
        choice: ``auto``, another registered name, or an own file.
        root: the data root.

    Raises:
        UsageError: there are no such public data, or they are of another kind, too few, or hold private examples.
    """
    if choice != AUTO:
        public = load_dataset(choice, root, words=dataset.words, places=dataset.image_shape[-1])
        require_scale(public, choice)
        _require_same_kind(dataset, public, choice)
        # An own file of images does not say what its features mean.
        public = replace(public, columns=dataset.columns, words=dataset.words)
        if among(public, dataset).any():
            raise UsageError(
                f"public data {choice!r} hold examples of dataset {dataset.name!r}, victims' or decoys' own; "
                "use --prior auto, or data that share no example with it"
            )
        sides = Sides(dataset, public)
    else:
        sides = _divided(dataset, name, root)
    require_enough(sides.private, sides.public, choice)
    return sides


def _divided(dataset: Dataset, name: str, root: Path) -> Sides:
    source = source_of(dataset_name(name))
    if source.test:
        private, public, part = dataset, source.test(root), "test part"
    else:
        private, public = (take_part(dataset, part, 0.5, purpose="public half") for part in ("train", "test"))
        part = "public half"
    public = public.take((~among(public, private)).nonzero()[:, 0])
    return Sides(private, replace(public, name=f"{dataset.name}, {part}"))


def require_scale(public: Dataset, choice: str) -> None:
    """Raises UsageError: public data are an own table, whose ranges and categories are not those of other rows."""
    if public.columns is not None and is_own_data(choice):
        raise UsageError(
            f"public data {choice!r} are a table that is scaled by its own ranges, not by those of the private rows; "
            "use --prior auto, or save features on the same scale as .npz"
        )


def _require_same_kind(dataset: Dataset, public: Dataset, choice: str) -> None:
    told = f"public data {choice!r} have"
    fix = f"use data of the same kind as {dataset.name!r}, or --prior auto"
    if public.image_shape != dataset.image_shape:
        raise UsageError(f"{told} examples of shape {public.image_shape}, not {dataset.image_shape}; {fix}")
    if public.words not in (None, dataset.words):
        raise UsageError(f"{told} another vocabulary; {fix}")
    if public.columns not in (None, dataset.columns):
        raise UsageError(f"{told} other columns; {fix}")
    if public.num_classes != dataset.num_classes:
        raise UsageError(f"{told} {public.num_classes} classes, not {dataset.num_classes}; {fix}")
    ours, theirs = (float(data.images.std()) for data in (dataset, public))
    if not ours / _WIDEST <= theirs <= ours * _WIDEST:
        raise UsageError(
            f"{told} values of another range (standard deviation {theirs:.2g}, not {ours:.2g}); scale them alike"
        )


def require_enough(private: Dataset, public: Dataset, choice: str) -> None:
    """Raises UsageError: there are too few public examples, or too few of a class that is private too."""
    fix = f"use {'another' if choice != AUTO else 'a larger'} --prior, or --prior none"
    if len(public.labels) < FEWEST:
        raise UsageError(f"{len(public.labels)} public examples ({public.name}) are too few (needs {FEWEST}); {fix}")
    counts = public.labels.bincount(minlength=public.num_classes)
    for label in private.labels.unique().tolist():
        if counts[label] < FEWEST_OF_A_CLASS:
            raise UsageError(
                f"class {private.class_names[label]!r} has {int(counts[label])} public examples ({public.name}), too "
                f"few (needs {FEWEST_OF_A_CLASS}); {fix}"
            )
