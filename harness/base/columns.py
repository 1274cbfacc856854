"""What the columns of a table mean: the public schema that encodes its rows as features in [0, 1]."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

MISSING = -1
"""The category of a value that is not known."""


@dataclass(frozen=True)
class Group:
    """A categorical column, encoded as one feature per category: 1 for the row's own, 0 for all others.

    ``optional`` columns may miss a value; all their features are then 0.
    """

    name: str
    categories: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class Columns:
    """The features of a row in order: the continuous columns, scaled to [0, 1], then the features of every group."""

    continuous: tuple[str, ...]
    groups: tuple[Group, ...] = ()

    @property
    def width(self) -> int:
        """F, the number of features."""
        return len(self.continuous) + sum(len(group.categories) for group in self.groups)

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The features of each group."""
        first, slices = len(self.continuous), []
        for group in self.groups:
            slices.append(slice(first, first + len(group.categories)))
            first += len(group.categories)
        return tuple(slices)

    def categories(self, features: Tensor) -> Tensor:
        """The category (..., G) of each group that is nearest to features (..., F), ``MISSING`` where none is nearer.

        The largest feature names the category. Where a value may be missing, all zeros are as good an encoding as any
        other, and nearer when no feature exceeds 1/2.
        """
        chosen = []
        for group, place in zip(self.groups, self.slices, strict=True):
            largest, category = features[..., place].max(-1)
            chosen.append(category.where(largest > 0.5, MISSING) if group.optional else category)
        return torch.stack(chosen, -1) if chosen else features.new_zeros((*features.shape[:-1], 0), dtype=torch.long)

    def project(self, features: Tensor) -> Tensor:
        """The encoding of a possible row that is nearest to features (..., F)."""
        projected = torch.zeros_like(features)
        numbers = slice(0, len(self.continuous))
        projected[..., numbers] = features[..., numbers].clamp(0.0, 1.0)
        for place, category in zip(self.slices, self.categories(features).unbind(-1), strict=True):
            known = (category != MISSING).to(features.dtype)
            projected[..., place].scatter_(-1, category.clamp_min(0)[..., None], known[..., None])
        return projected
