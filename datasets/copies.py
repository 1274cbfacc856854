"""Which examples of one dataset another one holds too, be it in another precision or slightly changed."""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor
from torch.nn import functional

from harness.datasets.record import Dataset

NEAR = 0.02
"""Root mean square difference of two images up to which they count as the same: a fifth of what makes a strict success,
and more than saving with loss or noise that nobody sees leaves. Of the test parts of MNIST and CIFAR-10 no image is as
near to one of the training part, of LFW's halves two are."""
_SHARE = 0.1
"""Of the standard deviation of all numbers, at most which it is: features may be smaller than pixels are."""
_CELLS, _TOGETHER = 4, 256


def among(public: Dataset, private: Dataset) -> Tensor:
    """(N,) whether each public example is among the private ones.

    Rows of tables have to be equal, images to be within :data:`NEAR` of each other.
    """
    known = set(_digests(private))
    equal = torch.tensor([digest in known for digest in _digests(public)], dtype=torch.bool)
    if public.columns is not None or not len(public.images) or not len(private.images):
        return equal
    return equal | _near(public.images, private.images)


def first_copies(dataset: Dataset) -> Tensor:
    """(N,) the place of the first example that each one is a copy of, its own where there is none before it.

    Copies are of one class, and as alike as :func:`among` says.
    """
    rows, places = dataset.images.flatten(1).double(), torch.arange(len(dataset.labels))
    reach = 0.0 if dataset.columns is not None else _reach(dataset.images)
    for label in dataset.labels.unique():
        firsts: list[int] = []
        for place in (dataset.labels == label).nonzero()[:, 0].tolist():
            apart = (rows[firsts] - rows[place]).square().mean(1) if firsts else torch.ones(1)
            if float(apart.min()) <= reach**2:
                places[place] = firsts[int(apart.argmin())]
            else:
                firsts.append(place)
    return places


def _digests(dataset: Dataset) -> list[bytes]:
    """One per example: of a row of a table as it is, of an image at 8 bits, in whatever precision it was saved."""
    rows = dataset.images.flatten(1)
    kept = (rows * 255).round().to(torch.uint8) if dataset.columns is None else rows + 0.0
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
    """How far apart two images may be and still be copies."""
    return min(NEAR, _SHARE * float(images.double().std(correction=0)))


def _averages(images: Tensor) -> NDArray[np.float64]:
    """(N, cells) means of images (N, C, H, W) over the channels and cells of equal size."""
    height, width = (size // _largest_divisor(size) for size in images.shape[-2:])
    return functional.avg_pool2d(images.double().mean(1, keepdim=True), (height, width)).flatten(1).numpy()


def _largest_divisor(size: int) -> int:
    """Into how many equal cells, up to ``_CELLS``, a side can be divided."""
    return next(cells for cells in range(_CELLS, 0, -1) if size % cells == 0)
