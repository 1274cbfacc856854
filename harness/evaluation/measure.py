"""How reconstructions are measured: images pixel by pixel, table rows column by column."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from harness.datasets import Dataset
from harness.scoring import (
    LpipsScorer,
    TableScale,
    image_metrics,
    image_strict,
    ssim_unavailable,
    success_table,
    table_metrics,
    table_unavailable,
)

Strict = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Measured:
    """Arrays (I,) by metric and by success rule, and the metrics that cannot be had with the reason."""

    metrics: dict[str, np.ndarray]
    success: dict[str, np.ndarray]
    missing: dict[str, str]


def measure(dataset: Dataset, truth: Tensor, made: Tensor, lpips: LpipsScorer | str) -> Measured:
    """Metrics and successes of I matched pairs (I, C, H, W) from a dataset.

    Args:
        dataset: where the truth comes from.
        truth: in [0, 1].
        made: the reconstructions, finite.
        lpips: the LPIPS network, or the reason why there is none.
    """
    metrics, missing = image_metrics(truth, made), {}
    if dataset.columns is not None:
        missing = table_unavailable(dataset.columns)
        scale = TableScale.of(dataset.columns, dataset.images)
        metrics = {name: values for name, values in metrics.items() if name not in missing}
        metrics |= table_metrics(scale, truth, made)
        return Measured(metrics, {"strict": scale.strict(truth, made).numpy()}, missing)
    success = success_table(metrics)
    reason = ssim_unavailable(*dataset.image_shape[1:])
    if reason:
        missing["ssim"] = reason
        del metrics["ssim"]
    if isinstance(lpips, str):
        missing["lpips"] = lpips
    else:
        metrics["lpips"] = lpips.score(truth, made)
    return Measured(metrics, success, missing)


def strict_rule(dataset: Dataset) -> Strict:
    """The strict success rule of a dataset, on truths and reconstructions (..., C, H, W): booleans (...)."""
    return image_strict if dataset.columns is None else TableScale.of(dataset.columns, dataset.images).strict
