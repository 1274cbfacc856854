"""Metrics for rows of a table."""

from torch import Tensor

from harness.scoring.metric import Metric, Pairs, register
from harness.scoring.success import STRICT_RMSE
from harness.scoring.table_scale import root_mean_square


def _errors(pairs: Pairs) -> Tensor:
    return pairs.table.errors(pairs.truth, pairs.made)


def _right(pairs: Pairs) -> Tensor:
    return pairs.table.categories_right(pairs.truth, pairs.made).double()


def _no_continuous(pairs: Pairs) -> str | None:
    return None if pairs.table.columns.continuous else "the table has no continuous columns"


def _no_categorical(pairs: Pairs) -> str | None:
    return None if pairs.table.columns.groups else "the table has no categorical columns"


register(
    # Root mean squared error of the continuous columns in standard deviations.
    Metric(
        name="continuous_rmse", measure=lambda pairs: root_mean_square(_errors(pairs)).numpy(), of="tables",
        missing=_no_continuous, title="RMSE/std", shown="median", limits=(0.0, 5.0), in_victims=True,
    ),
    # Share of them within a tenth of a standard deviation.
    Metric(
        name="continuous_within", measure=lambda pairs: (_errors(pairs) <= STRICT_RMSE).double().mean(-1).numpy(),
        of="tables", missing=_no_continuous, low_leaks=False,
    ),
    # Share of categorical columns whose nearest category is right.
    Metric(
        name="categorical_accuracy", measure=lambda pairs: _right(pairs).mean(-1).numpy(), of="tables",
        missing=_no_categorical, title="categories", digits=None, low_leaks=False, in_victims=True,
    ),
    # 1 where all are.
    Metric(
        name="categories_all_right", measure=lambda pairs: _right(pairs).amin(-1).numpy(), of="tables",
        missing=_no_categorical, low_leaks=False,
    ),
)  # fmt: skip
