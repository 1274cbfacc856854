"""Inner products of long vectors: one pass, without a tensor of products."""

from collections.abc import Iterator

import torch
from torch import Tensor

LONG = 2**18
"""Coordinates from which a vector leaves the caches, and passes over it are what its arithmetic costs."""

_BLOCK = 2**16  # few enough for single precision to add up, and for a core's own cache
_LAUNCHED = 2**22  # on a GPU, where every piece costs a launch
_SHARED = 2**20


def blocks(*vectors: Tensor, added_up: bool = True) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of vectors of one length, side by side: what is done to one piece finds it in the cache.

    Longer ones, for the cache that cores share, where nothing is ``added_up``.
    """
    on_cpu = _BLOCK if added_up else _SHARED
    size = on_cpu if vectors[0].device.type == "cpu" else _LAUNCHED
    return zip(*(vector.split(size) for vector in vectors), strict=True)


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products (R,) of rows (R, n)."""
    rows = zip(left.unbind(), right.unbind(), strict=True)
    return torch.stack([torch.stack([torch.dot(*pair) for pair in blocks(*row)]).sum() for row in rows])


def group_products(left: Tensor, right: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Inner products (R, M) within consecutive groups of coordinates of (R, P): of both, and of each with itself."""
    groups = zip(left.split(sizes, 1), right.split(sizes, 1), strict=True)
    found = [[_products(*row) for row in zip(*group, strict=True)] for group in groups]
    both, own, others = torch.stack([torch.stack(rows) for rows in found], 1).unbind(-1)
    return both, own, others


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Left with right, left with left, right with right (3,)."""
    made = [torch.dot(*pair) for a, b in blocks(left, right) for pair in ((a, b), (a, a), (b, b))]
    return torch.stack(made).reshape(-1, 3).sum(0)
