"""Meaning of a table's columns: the public schema that encodes its rows as features in [0, 1]."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from harness.base.ranges import NonNegative

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


class TableShape(tuple[int, int, int]):
    """The shape (1, 1, F) of table rows, which also says what the features mean.

    Attributes:
        columns: their meaning.
    """

    columns: Columns

    def __new__(cls, columns: Columns) -> "TableShape":
        made = super().__new__(cls, (1, 1, columns.width))
        made.columns = columns
        return made

    def __getnewargs__(self) -> tuple[Columns]:
        return (self.columns,)


# --------------------------------------------------------------------------------------
# Captured rows of tables: what their features mean, and whether rows are what they are said to be.


#: How far from 0 and 1 features of categories may be, as numbers are rounded.
_ROUNDING = 1e-3


class TableColumns(BaseModel, extra="forbid", frozen=True):
    """The columns of a table, as ``capture.json`` names them. Features are in this order.

    Attributes:
        numbers: names of continuous columns, a feature in [0, 1] each.
        categories: by the name of a categorical column its categories, a feature each: 1 for the row's own, else 0.
        missing: categorical columns that may lack a value; all their features are then 0.
        deviations: standard deviations of the continuous columns over the whole table, in which errors are counted;
            None for those of the captured rows and the look-alikes beside them.
    """

    numbers: tuple[str, ...] = ()
    categories: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    deviations: tuple[NonNegative, ...] | None = None

    @model_validator(mode="after")
    def _agree(self) -> "TableColumns":
        lists = {"columns": (*self.numbers, *self.categories)} | {
            f"categories of {name!r}": own for name, own in self.categories.items()
        }
        for where, names in lists.items():
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{where} name {twice!r} twice; give each a name of its own")
        strange = next((name for name in self.missing if name not in self.categories), None)
        if strange is not None:
            raise ValueError(f"columns name {strange!r} under missing, and no categories of it; correct one of them")
        if self.deviations is not None and len(self.deviations) != len(self.numbers):
            raise ValueError(
                f"columns have {len(self.numbers)} numbers and {len(self.deviations)} deviations; give one of each"
            )
        return self

    @classmethod
    def of(cls, columns: Columns, deviations: Tensor | None = None) -> "TableColumns":
        """Return the fact of a dataset's columns, with deviations (C,) of its whole table where they are known."""
        groups = columns.groups
        return cls(
            numbers=columns.continuous, categories={group.name: group.categories for group in groups},
            missing=tuple(group.name for group in groups if group.optional),
            deviations=None if deviations is None else tuple(deviations.tolist()),
        )  # fmt: skip

    @property
    def as_columns(self) -> Columns:
        """The columns as attacks and scores take them."""
        named = self.categories.items()
        return Columns(self.numbers, tuple(Group(name, own, name in self.missing) for name, own in named))

    @property
    def scales(self) -> Tensor | None:
        """The deviations (C,) in float64."""
        return None if self.deviations is None else torch.tensor(self.deviations, dtype=torch.float64)

    def require_shape(self, shape: tuple[int, int, int]) -> None:
        """Raises ValueError: rows of these columns are not examples of this shape (C, H, W)."""
        width = self.as_columns.width
        if shape != (1, 1, width):
            features = width - len(self.numbers)
            raise ValueError(
                f"columns are {len(self.numbers)} numbers and {features} features of categories, and image_shape is "
                f"{list(shape)}; make it [1, 1, {width}], or name the column of every feature"
            )

    def unlike(self, columns: Columns | None) -> str | None:
        """Return how columns of a table differ from these, in words; None where they do not, or are not known."""
        own = self.as_columns
        ours, theirs = (
            one and (len(one.continuous), [len(group.categories) for group in one.groups]) for one in (own, columns)
        )
        if theirs is None or ours == theirs:
            return None
        numbers, sizes = theirs
        return f"{numbers} numbers and categories of {', '.join(map(str, sizes)) or 'no'} features"

    def stray(self, rows: Tensor) -> str | None:
        """Return which of these rows (n, 1, 1, F) is none of the table, in words; None where all are."""
        features, schema = rows.flatten(1), self.as_columns
        for group, place in zip(schema.groups, schema.slices, strict=True):
            apart = (features[:, place] - schema.project(features)[:, place]).abs().amax(1)
            wrong = (apart > _ROUNDING).nonzero()[:, 0]
            if len(wrong):
                may = " or none" if group.optional else ""
                return f"row {int(wrong[0]) + 1} is of no category of {group.name!r}{may}"
        return None
