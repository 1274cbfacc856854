"""Captured rows of tables: what their features mean, and whether rows are what they are said to be."""

from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from harness.base.columns import Columns, Group
from harness.base.ranges import NonNegative

#: How far from 0 and 1 features of categories may be, as numbers are rounded.
_ROUNDING = 1e-3


class TableColumns(BaseModel):
    """The columns of a table, as ``capture.json`` names them. Features are in this order.

    Attributes:
        numbers: names of continuous columns, a feature in [0, 1] each.
        categories: by the name of a categorical column its categories, a feature each: 1 for the row's own, else 0.
        missing: categorical columns that may lack a value; all their features are then 0.
        deviations: standard deviations of the continuous columns over the whole table, in which errors are counted;
            None for those of the captured rows and the look-alikes beside them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    numbers: tuple[str, ...] = ()
    categories: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    deviations: tuple[NonNegative, ...] | None = None

    @model_validator(mode="after")
    def _agree(self) -> "TableColumns":
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
