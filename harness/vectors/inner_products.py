"""Inner products of long vectors: one pass, without a tensor of products."""

import torch
from torch import Tensor

LONG = 2**18
"""Coordinates from which a vector leaves the caches, and passes over it are what its arithmetic costs."""

_BLOCK = 2**17  # few enough for single precision to add up


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products (R,) of rows (R, n)."""
    return torch.stack([_of_one(*pair) for pair in zip(left.unbind(), right.unbind(), strict=True)])


def _of_one(left: Tensor, right: Tensor) -> Tensor:
    pieces = zip(left.split(_BLOCK), right.split(_BLOCK), strict=True)
    return torch.stack([torch.dot(*piece) for piece in pieces]).sum()


def group_products(left: Tensor, right: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Inner products (R, M) within consecutive groups of coordinates of (R, P)."""
    pieces = zip(left.split(sizes, 1), right.split(sizes, 1), strict=True)
    return torch.stack([inner_products(*piece) for piece in pieces], 1)
