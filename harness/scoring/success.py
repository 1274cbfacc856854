"""Success rules, and rates and means with their uncertainty (spec/attacks.md 9.2)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor

STRICT_RMSE = 0.1
SSIM_FLOOR = 0.9
TABLE3_DISTANCE = 0.6


def success_table(metrics: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.bool_]]:
    """Success of every pair by each rule, from the arrays of ``image_metrics``.

    ``strict``: clamped RMSE <= 0.1; ``ssim``: SSIM >= 0.9; ``table3``: un-clamped RMSE < 0.6, the cut that fits
    the paper's Table III. The rule ``ssim`` is left out when SSIM cannot be had: no success must not read as failure.
    """
    table = {"strict": metrics["rmse"] <= STRICT_RMSE, "table3": metrics["rmse_raw"] < TABLE3_DISTANCE}
    if not np.isnan(metrics["ssim"]).any():
        table["ssim"] = metrics["ssim"] >= SSIM_FLOOR
    return table


def image_strict(truth: Tensor, reconstruction: Tensor) -> Tensor:
    """The rule ``strict`` alone, on images (..., C, H, W): booleans (...)."""
    return (reconstruction.clamp(0, 1) - truth).square().flatten(-3).mean(-1).sqrt() <= STRICT_RMSE


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial rate (Clopper and Pearson 1934); (0, 1) when n is 0."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes out of {n} is impossible")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.isf(tail, successes + 1, n - successes))
    return low, high


def upper_bound(successes: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound of a rate: with no success it falls below 0.05 from n = 59 on."""
    return clopper_pearson(successes, n, 2.0 * confidence - 1.0)[1]


@dataclass(frozen=True)
class Rate:
    """A share of ``n`` trials with its two-sided 95% Clopper-Pearson interval; ``rate`` is None when n is 0."""

    rate: float | None
    successes: int
    n: int
    ci95: tuple[float, float]

    @classmethod
    def of(cls, outcomes: ArrayLike) -> "Rate":
        """From booleans of any shape, one per trial."""
        flags = np.asarray(outcomes, dtype=bool)
        successes, n = int(flags.sum()), int(flags.size)
        return cls(successes / n if n else None, successes, n, clopper_pearson(successes, n))


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation and Student-t 95% interval of the mean; None where one cannot be had."""

    mean: float | None
    std: float | None
    ci95: tuple[float, float] | None

    @classmethod
    def of(cls, values: ArrayLike) -> "Summary":
        """From one value per victim. All None when there are no values or any is NaN: averages never drop a victim."""
        sample = np.asarray(values, dtype=np.float64).ravel()
        if sample.size == 0 or np.isnan(sample).any():
            return cls(None, None, None)
        mean = float(sample.mean())
        if sample.size == 1:
            return cls(mean, None, None)
        std = float(sample.std(ddof=1))
        margin = float(stats.t.ppf(0.975, sample.size - 1)) * std / np.sqrt(sample.size)
        return cls(mean, std, (float(mean - margin), float(mean + margin)))
