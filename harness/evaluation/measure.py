"""Measures of reconstructions: images pixel by pixel, table rows column by column, texts token by token."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from harness.datasets import Dataset
from harness.results.schema import SuccessRule
from harness.scoring import LpipsScorer, Pairs, Strict, TableScale, TextScale, image_strict, measured, success_table
from harness.scoring.metrics import Scale


@dataclass(frozen=True)
class Measurements:
    """Arrays (I,) by metric and by success rule, and the metrics that cannot be had with the reason."""

    metrics: dict[str, np.ndarray]
    success: Mapping[SuccessRule, np.ndarray]
    missing: dict[str, str]


def measure(dataset: Dataset, truth: Tensor, made: Tensor, lpips: LpipsScorer | str) -> Measurements:
    """Metrics and successes of I matched pairs (I, C, H, W) from a dataset.

    Args:
        dataset: where the truth comes from.
        truth: in [0, 1].
        made: the reconstructions, finite.
        lpips: the LPIPS network, or the reason why there is none.
    """
    scale = scale_of(dataset)
    metrics, missing = measured(Pairs(truth, made, scale, lpips))
    if scale is None:
        return Measurements(metrics, success_table(metrics), missing)
    return Measurements(metrics, {"strict": scale.strict(truth, made).numpy()}, missing)


def strict_rule(dataset: Dataset) -> Strict:
    """The strict success rule of a dataset, on truths and reconstructions (..., C, H, W): booleans (...)."""
    scale = scale_of(dataset)
    return image_strict if scale is None else scale.strict


def scale_of(dataset: Dataset) -> Scale | None:
    """Return what tables and texts are measured by; None for images."""
    if dataset.words is not None:
        return TextScale()
    return None if dataset.columns is None else TableScale.of(dataset.columns, dataset.images, dataset.deviations)
