"""What errors on rows of a table are measured by, and when a row counts as reconstructed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.datasets.columns import Columns
from harness.scoring.pixels import clamped_pixels, exact_pixels
from harness.scoring.success import STRICT_RMSE


@dataclass(frozen=True)
class TableScale:
    """The scale of errors on a table.

    A tenth of a column's range is a close guess for a column that uses its range and a poor one for a column that
    does not (a class mean is within a tenth of the range of most of ``cancer``), so continuous errors count in
    standard deviations of their column.

    ``columns``: the schema; ``deviations``: (C,) float64, standard deviation of each continuous column over the table,
    1 where a column is constant.
    """

    columns: Columns
    deviations: Tensor

    @classmethod
    def of(cls, columns: Columns, features: Tensor) -> "TableScale":
        """Return the scale from all rows (N, 1, 1, F) of the table."""
        values = exact_pixels(features).flatten(1)[:, : len(columns.continuous)]
        deviations = (values - values.mean(0)).square().mean(0).sqrt()
        return cls(columns, torch.where(deviations > 0, deviations, 1.0))

    def errors(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Absolute errors (..., C) of the continuous columns in standard deviations, after clamping to [0, 1].

        Rows are (..., 1, 1, F); the reconstruction is finite.
        """
        difference = clamped_pixels(truth) - clamped_pixels(reconstruction)
        return difference.flatten(-3)[..., : len(self.columns.continuous)].abs() / self.deviations

    def categories_right(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Return whether the nearest category of each categorical column (..., G) is true; rows are (..., 1, 1, F)."""
        true_category = self.columns.categories(exact_pixels(truth).flatten(-3))
        return self.columns.categories(exact_pixels(reconstruction).flatten(-3)) == true_category

    def strict(self, truth: Tensor, reconstruction: Tensor) -> Tensor:
        """Return whether rows (..., 1, 1, F) are reconstructed (...): every category right, and continuous columns
        within a root mean square of 0.1 standard deviations."""
        categories = self.categories_right(truth, reconstruction).all(-1)
        if not self.columns.continuous:
            return categories
        return categories & (root_mean_square(self.errors(truth, reconstruction)) <= STRICT_RMSE)


def root_mean_square(errors: Tensor) -> Tensor:
    """Of errors (..., C): (...)."""
    return errors.square().mean(-1).sqrt()
