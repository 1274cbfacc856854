"""What a metric is: one record says all that documents, tables and figures need of it, and how it is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.scoring.lpips_metric import LpipsScorer
from harness.scoring.pixels import clamped_pixels, exact_pixels
from harness.scoring.table_scale import TableScale

Values = NDArray[np.float64]
_NO_IMAGE = "it compares images, and a table row is none"


@dataclass(frozen=True)
class Pairs:
    """I matched pairs (I, C, H, W): truths in [0, 1] and finite reconstructions in any range.

    ``scale`` measures rows of a table, None for images; ``lpips`` is the network, or the reason why there is none.

    Raises:
        ValueError: the shapes differ or a value is not finite.
    """

    truth: Tensor
    made: Tensor
    scale: TableScale | None = None
    lpips: LpipsScorer | str = "not asked for"

    def __post_init__(self) -> None:
        if self.truth.shape != self.made.shape:
            raise ValueError(f"shapes differ: truth {tuple(self.truth.shape)}, made {tuple(self.made.shape)}")
        exact_pixels(self.made)

    @property
    def table(self) -> TableScale:
        """Return what rows are measured by. Raises ValueError for images."""
        if self.scale is None:
            raise ValueError("a metric of tables was asked of images")
        return self.scale

    @cached_property
    def squared(self) -> Tensor:
        """(I, U) squared errors after clamping to [0, 1], float64 on the CPU."""
        return (clamped_pixels(self.truth) - clamped_pixels(self.made)).flatten(1).square()

    @cached_property
    def mse(self) -> Values:
        """(I,) mean squared errors after clamping."""
        return self.squared.mean(1).numpy()


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number per matched pair.

    Attributes:
        name: in documents.
        measure: from pairs to values (I,).
        of: what it applies to; documents of images do not name what is of tables alone.
        missing: why it cannot be had for pairs that it applies to, None where it can.
        title: in tables and figures; empty where only documents have it.
        digits: decimals that are shown; None for a share, shown in percent.
        shown: which of the two stands in tables.
        low_leaks: whether a small value means that the truth came back.
        limits: what figures show.
        in_victims: whether the record of each victim has it.
    """

    name: str
    measure: Callable[[Pairs], Values]
    of: Literal["anything", "images", "tables"] = "anything"
    missing: Callable[[Pairs], str | None] = lambda pairs: None
    title: str = ""
    digits: int | None = 3
    shown: Literal["mean", "median"] = "mean"
    low_leaks: bool = True
    limits: tuple[float, float] = (0.0, 1.0)
    in_victims: bool = False

    def obstacle(self, pairs: Pairs) -> str | None:
        """Return the reason why these pairs do not have it, None where they do."""
        return _NO_IMAGE if self.of == "images" and pairs.scale is not None else self.missing(pairs)


#: Every metric by name, in the order of documents.
METRICS: dict[str, Metric] = {}


def register(*metrics: Metric) -> None:
    """Makes metrics known, in this order. Raises ValueError for a name that is known already."""
    for metric in metrics:
        if metric.name in METRICS:
            raise ValueError(f"metric {metric.name!r} is registered twice")
        METRICS[metric.name] = metric


def measured(pairs: Pairs) -> tuple[dict[str, Values], dict[str, str]]:
    """Every metric of these pairs by name, and those that cannot be had with the reason."""
    asked = [metric for metric in METRICS.values() if metric.of != "tables" or pairs.scale is not None]
    missing = {metric.name: reason for metric in asked if (reason := metric.obstacle(pairs)) is not None}
    return {metric.name: metric.measure(pairs) for metric in asked if metric.name not in missing}, missing
