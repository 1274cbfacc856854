"""How much of the labels an attack recovered, and how much of that is luck (docs/verdicts.md)."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import cdist
from torch import Tensor

from harness.base.randomness import derive_seed
from harness.results import LabelInference

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
        accuracy=float(accuracy),
        chance=_chance(truth, split_labels),
        p_value=float((1 + reached) / (1 + permutations)),
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
