"""Success rules, rates and means with their uncertainty, and recovered labels beside chance (docs/verdicts.md)."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from scipy.spatial.distance import cdist
from torch import Tensor

from harness.base.randomness import derive_seed
from harness.results import LabelInference, Rate, Summary
from harness.results.schema import SuccessRule

STRICT_RMSE = 0.1
SSIM_FLOOR = 0.9
TABLE3_DISTANCE = 0.6
#: Of fewer victims a lineup of few look-alikes cannot tell a leak, even where every truth is first.
FEWEST_TOLD = 8


Strict = Callable[[Tensor, Tensor], Tensor]


def success_table(metrics: Mapping[str, NDArray[np.float64]]) -> dict[SuccessRule, NDArray[np.bool_]]:
    """Success of every pair by each rule, from the metrics of images.

    ``strict``: clamped RMSE <= 0.1; ``ssim``: SSIM >= 0.9; ``table3``: un-clamped RMSE < 0.6, the cut that fits
    the paper's Table III. The rule ``ssim`` is left out when SSIM cannot be had: no success must not read as failure.
    """
    table: dict[SuccessRule, NDArray[np.bool_]] = {
        "strict": metrics["rmse"] <= STRICT_RMSE, "table3": metrics["rmse_raw"] < TABLE3_DISTANCE,
    }  # fmt: skip
    if "ssim" in metrics:
        table["ssim"] = metrics["ssim"] >= SSIM_FLOOR
    return table


def image_strict(truth: Tensor, reconstruction: Tensor) -> Tensor:
    """The rule ``strict`` alone, on images (..., C, H, W): booleans (...)."""
    return (reconstruction.clamp(0, 1) - truth).square().flatten(-3).mean(-1).sqrt() <= STRICT_RMSE


def clopper_pearson(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial rate (Clopper and Pearson 1934); (0, 1) when n is 0.

    Neither has to be a whole number: see :func:`clustered_interval`.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes out of {n} is impossible")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.isf(tail, successes + 1, n - successes))
    return low, high


def clustered_interval(
    flags: NDArray[np.bool_], confidence: float = 0.95, counted: NDArray[np.bool_] | None = None
) -> tuple[float, float]:
    """Two-sided interval of a rate over the images (V, b) of victims, whose images share one fate more or less.

    Clopper-Pearson with the number of independent trials that varies as much as the victims' own rates do (Korn and
    Graubard 1998, Survey Methodology 24); one trial per victim where these rates are all 0 or all 1. Of few victims
    with many images the variation is itself uncertain: among 8 with 64 each about 85% of such intervals cover.

    Args:
        counted: (V, b), which images count; all by default. A victim none of whose images counts is none.
    """
    images = np.full(len(flags), flags.shape[1]) if counted is None else counted.sum(1)
    hits = flags.sum(1) if counted is None else (flags & counted).sum(1)
    hits, images = hits[images > 0], images[images > 0]
    victims, total = len(images), int(images.sum())
    rate = float(hits.sum() / total) if total else 0.0
    trials = float(victims)
    if victims > 1 and 0 < rate < 1:
        # The variance of a ratio of sums, which is that of the mean where all victims have as many images.
        spread = float(((hits - rate * images) ** 2).sum()) * victims / (victims - 1) / total**2
        lost = (stats.t.ppf(0.975, total - 1) / stats.t.ppf(0.975, victims - 1)) ** 2
        trials = min(float(total), float(rate * (1 - rate) / spread * lost)) if spread else float(total)
    return clopper_pearson(rate * trials, trials, confidence)


def upper_bound(successes: int, n: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound of a rate: with no success it falls below 0.05 from n = 59 on."""
    return clopper_pearson(successes, n, 2.0 * confidence - 1.0)[1]


def brings_back(victims: Rate, lineup_p: float | None) -> bool:
    """Return whether most victims are reconstructed where no lineup can confirm it: there are no look-alikes, or few
    victims.

    Such an attack works, though no verdict says so; and none is resilient there.
    """
    untold = lineup_p is None or victims.n < FEWEST_TOLD
    return untold and victims.successes > 0 and 2 * victims.successes >= victims.n


def upper_share(outcomes: ArrayLike, confidence: float = 0.95, counted: NDArray[np.bool_] | None = None) -> float:
    """One-sided upper bound of the share of booleans that are true, in the form of :func:`rate_of`."""
    return _interval(np.asarray(outcomes, dtype=bool), 2.0 * confidence - 1.0, counted)[1]


def upper_mean(shares: ArrayLike, confidence: float = 0.95) -> float:
    """One-sided upper bound of the mean of independent draws (k,) of a number in [0, 1], whatever its law; 1 for none.

    The mean of k draws falls to m or below with a chance of at most exp(-k KL(m, mean)), KL that of two coins
    (Hoeffding 1963, theorem 1). Where all draws are 0 it is the bound of :func:`upper_bound`, and no bound is smaller:
    draws may be 0 or 1. So clusters count, and not what is in them, unless something is known of how alike that is.
    """
    values = np.asarray(shares, dtype=np.float64)
    mean = float(values.mean()) if values.size else 1.0
    wanted = -math.log(1.0 - confidence) / max(1, values.size)
    if mean >= 1.0:
        return 1.0
    low, high = mean, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if coin_divergence(mean, middle) < wanted else (low, middle)
    return high


def coin_divergence(one: float, other: float) -> float:
    """Kullback-Leibler divergence of two coins, in nats; ``other`` in (0, 1)."""
    return float(special.rel_entr(one, other) + special.rel_entr(1 - one, 1 - other))


def rate_of(outcomes: ArrayLike, counted: NDArray[np.bool_] | None = None) -> Rate:
    """The share of booleans that are true, one per trial (V,), or one per image of each victim (V, b).

    ``counted``: those that count, in the same form; all by default.
    """
    flags = np.asarray(outcomes, dtype=bool)
    ci95 = _interval(flags, 0.95, counted)
    flags = flags if counted is None else flags[counted]
    successes, n = int(flags.sum()), int(flags.size)
    return Rate(rate=successes / n if n else None, successes=successes, n=n, ci95=ci95)


def _interval(flags: NDArray[np.bool_], confidence: float, counted: NDArray[np.bool_] | None) -> tuple[float, float]:
    if flags.ndim == 2 and flags.shape[1] > 1 and flags.size:
        return clustered_interval(flags, confidence, counted)
    flags = flags if counted is None else flags[counted]
    return clopper_pearson(int(flags.sum()), flags.size, confidence)


def summary_of(values: ArrayLike, counted: NDArray[np.bool_] | None = None) -> Summary:
    """Mean, median and Student-t 95% interval of the mean of values per victim (V,), or per image of each (V, b).

    The interval is over victims. All None when there are no values or any is NaN: averages never drop a victim.

    ``counted``: those that count, in the same form; all by default.
    """
    table = np.asarray(values, dtype=np.float64)
    sample = table if counted is None else table[counted]
    if sample.size == 0 or np.isnan(sample).any():
        return Summary()
    mean, std = float(sample.mean()), float(sample.std(ddof=1)) if sample.size > 1 else None
    own = table.reshape(len(table), -1).mean(1) if counted is None else np.mean(table, 1, where=counted)
    margin = stats.t.ppf(0.975, len(own) - 1) * own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else None
    ci95 = None if margin is None else (float(mean - margin), float(mean + margin))
    return Summary(mean=mean, std=std, median=float(np.median(sample)), ci95=ci95)


# How probable it is that a guess which has seen nothing is accurate (docs/verdicts.md).

_SAMPLE = 400  # images of a class that say which balls are the full ones
_FULL = 50  # balls whose images are then all counted
_ROUNDING = 1e-4  # of distances in single precision


def blind_strict(images: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """The largest probability that one guess is a strict success, for victims of some classes, the class known.

    A guess is accurate for images in a ball around it. A ball of twice the radius around any of these holds all of
    them, so no guess is accurate for more images than the fullest such ball holds. Every image is a centre; of a
    large class a sample says which balls are the fullest, and in those all images are counted.

    Args:
        images: (N, C, H, W) in [0, 1], which victims are drawn from.
        labels: (N,), their classes.
        classes: (V, n), those of the victims.

    Returns:
        (V, n) probabilities in (0, 1].
    """
    found = torch.ones(int(labels.max()) + 1, dtype=torch.float64)
    for label in classes.unique().tolist():
        found[label] = _fullest(images, labels, label)
    return found[classes.long()]


@lru_cache(maxsize=64)  # all cells of a dataset ask
def _fullest(images: Tensor, labels: Tensor, label: int) -> float:
    """The largest share of a class's images in a ball of twice the strict radius around one of them."""
    own = images[labels == label].flatten(1).float()
    reach = 2 * (STRICT_RMSE + _ROUNDING) * own.shape[1] ** 0.5

    def shares(centres: Tensor, counted: Tensor) -> Tensor:
        return torch.cat([(torch.cdist(some, counted) <= reach).double().mean(1) for some in centres.split(_SAMPLE)])

    guessed = shares(own, own[:: -(-len(own) // _SAMPLE)])
    return float(shares(own[guessed.topk(min(_FULL, len(own))).indices], own).max())


_BLOCK = 1_000


def label_accuracy(inferred: Tensor, truth: Tensor) -> NDArray[np.float64]:
    """Per victim 1 - 0.5 * sum_c |n_c - n_hat_c| / B: the share of labels right, whatever their order.

    Args:
        inferred: (V, B) integer labels; a value outside the classes (such as -1) counts as wrong.
        truth: (V, B) integer labels.
    """
    inferred_counts, true_counts = _counts(inferred, truth)
    return 1.0 - 0.5 * np.abs(inferred_counts - true_counts).sum(axis=1) / truth.shape[1]


def label_summary(
    inferred: Tensor,
    truth: Tensor,
    split_labels: Tensor,
    seed: int,
    permutations: int = 9_999,
    groups: NDArray[np.int64] | None = None,
) -> LabelInference:
    """Label accuracy beside chance.

    ``p_value`` is one-sided, by permuting the inferred label sets between victims. Unlike a binomial test against
    ``chance`` it needs no independence of the labels in a batch, and an attack that answers the same for everybody
    cannot pass it, however well its answer fits the class frequencies.

    Args:
        inferred: (V, B) integer labels.
        truth: (V, B) integer labels.
        split_labels: (N,) labels of the data the victims were drawn from.
        seed: key of the permutations.
        groups: (V,) of victims who share images; groups are permuted then, as they are the independent draws.
    """
    inferred_counts, true_counts = _counts(inferred, truth)
    victims, batch = truth.shape
    # agreement[i, j]: the accuracy victim i would have with the labels inferred for victim j.
    agreement = 1.0 - 0.5 * cdist(true_counts, inferred_counts, metric="cityblock") / batch
    accuracy = agreement.trace() / victims
    if groups is not None:
        members = np.equal.outer(np.arange(groups.max() + 1), groups).astype(float)
        members /= members.sum(1, keepdims=True)
        agreement = members @ agreement @ members.T
    observed = agreement.trace()
    random = np.random.default_rng(derive_seed("label permutations", seed))
    rows, reached = np.arange(len(agreement)), 0
    for start in range(0, permutations, _BLOCK):
        everyone = np.tile(rows, (min(_BLOCK, permutations - start), 1))
        reached += (agreement[rows, random.permuted(everyone, axis=1)].sum(1) >= observed - 1e-9).sum()
    return LabelInference(
        accuracy=float(accuracy), chance=_chance(truth, split_labels), p_value=float((1 + reached) / (1 + permutations))
    )


def _chance(truth: Tensor, split_labels: Tensor) -> float:
    """Exact mean of label_accuracy for labels drawn from the class frequencies: E sum_c min(n_c, Binomial) / B."""
    classes, class_sizes = np.unique(_array(split_labels), return_counts=True)
    frequencies = class_sizes / class_sizes.sum()
    victims, batch = truth.shape
    true_counts = (_array(truth)[:, :, None] == classes).sum(axis=1)
    # E min(n, X) = P(X >= 1) + ... + P(X >= n), added up for n = 0 .. B and every class.
    at_least = stats.binom.sf(np.arange(batch)[:, None], batch, frequencies)
    expected_overlap = np.vstack([np.zeros(len(classes)), at_least.cumsum(axis=0)])
    return float(expected_overlap[true_counts, np.arange(len(classes))].sum() / (victims * batch))


def _counts(inferred: Tensor, truth: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Occurrences (V, classes seen) of every label, inferred and true."""
    if inferred.shape != truth.shape:
        raise ValueError(f"shapes differ: inferred {tuple(inferred.shape)}, truth {tuple(truth.shape)}")
    guesses, labels = _array(inferred), _array(truth)
    classes = np.unique(np.concatenate([guesses.ravel(), labels.ravel()]))
    return (guesses[:, :, None] == classes).sum(axis=1), (labels[:, :, None] == classes).sum(axis=1)


def _array(labels: Tensor) -> NDArray[np.int64]:
    return labels.detach().cpu().numpy().astype(np.int64)
