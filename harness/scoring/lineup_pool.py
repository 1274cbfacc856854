"""The images one class offers a lineup, and how far each lies from what an attack made of every victim."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from harness.base.randomness import derive_seed
from harness.scoring.images import repeats_of
from harness.scoring.success import STRICT_RMSE, Strict, image_strict

# From more reconstructions of a victim on than that, only the nearest few by a rough distance are compared exactly.
_MANY, _FEW = 8, 2


@dataclass(frozen=True)
class ClassPool:
    """One class. Pool items 0 .. T-1 are its true images (of any victim), the rest are decoys nobody used.

    ``label``: the class;
    ``images``: (P,) dataset indices of the items;
    ``truths``: T;
    ``slots``: (S, 2) victim and batch position of every true image of the class, once for a victim;
    ``items``: (S,) the item that is scored as each slot's truth;
    ``ranks``: (S, P) int32, twice the mid-rank of each item by distance from the slot's victim (1 = nearest);
    ``strict``: (S, P) whether one of the slot's reconstructions is accurate for an item;
    ``closeness``: (S, T) how far each truth is, as a share of the distance of the nearest decoy.
    """

    label: int
    images: NDArray[np.int64]
    truths: int
    slots: NDArray[np.int64]
    items: NDArray[np.int64]
    ranks: NDArray[np.int32]
    strict: NDArray[np.bool_]
    closeness: NDArray[np.float64]

    @property
    def lineup_size(self) -> int:
        return len(self.images) - self.truths + 1


class Question(NamedTuple):
    """Victims (V,), and the items of one class (P,), as indices of the dataset."""

    victims: NDArray[np.int64]
    items: NDArray[np.int64]
    label: int


Answer = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""Two arrays (V, P): how far each item is from what the attack made of each victim, and whether that is accurate for
the item."""
Compare = Callable[[Sequence[Question]], Iterable[Answer]]
"""From one question for each class to their answers, in the same order."""


def one_by_one(answer: Callable[[NDArray[np.int64], NDArray[np.int64], int], Answer]) -> Compare:
    """A comparison that answers each question by itself."""
    return lambda questions: (answer(*question) for question in questions)


def class_pools(
    compare: Compare, truth_indices: NDArray[np.int64], labels: NDArray[np.int64], seed: int, max_decoys: int
) -> list[ClassPool]:
    """The pools of all classes that have decoys; classes used up by the victims have none and are left out.

    An image in several places of a victim has a slot in the first of them.

    Args:
        compare: called once, with a question for each class.
        truth_indices: (V, B) into the dataset.
        labels: (N,).
        seed: key of the choice of decoys, with the class.
        max_decoys: most decoys per class.
    """
    unused = np.ones(len(labels), dtype=bool)
    unused[truth_indices] = False
    true_labels, repeats = labels[truth_indices], repeats_of(truth_indices)
    truths_of, questions = [], list[Question]()
    for label in np.unique(true_labels).tolist():
        candidates = np.flatnonzero(unused & (labels == label))
        if len(candidates) == 0:
            continue
        random = np.random.default_rng(derive_seed("lineup decoys", seed, label))
        decoys = random.choice(candidates, size=min(max_decoys, len(candidates)), replace=False)
        slots = np.argwhere((true_labels == label) & ~repeats)
        truths, items = np.unique(truth_indices[tuple(slots.T)], return_inverse=True)
        questions.append(Question(np.unique(slots[:, 0]), np.concatenate([truths, decoys]), label))
        truths_of.append((len(truths), slots, items))
    answers = compare(questions) if questions else ()
    return [_pool(*one) for one in zip(questions, truths_of, answers, strict=True)]


def _pool(
    question: Question, truths_of: tuple[int, NDArray[np.int64], NDArray[np.int64]], answer: Answer
) -> ClassPool:  # fmt: skip
    victims, images, label = question
    (truths, slots, items), (distances, accurate) = truths_of, answer
    rows = np.searchsorted(victims, slots[:, 0])
    # Doubled, because mid-ranks of ties are halves and integers compare fastest.
    ranks = (2.0 * rankdata(distances, method="average", axis=1)).astype(np.int32)
    own, nearest = distances[:, :truths], distances[:, truths:].min(1, keepdims=True)
    # A truth that a decoy equals is as far as it, also where both are what was made.
    closeness = np.where((own == 0) & (nearest == 0), 1.0, own / np.maximum(nearest, 1e-30))[rows]
    return ClassPool(label, images, truths, slots, items, ranks[rows], accurate[rows], closeness)


def by_pixels(reconstruction: Tensor, images: Tensor, strict: Strict | None) -> Compare:
    """By RMSE to the nearest of a victim's reconstructions.

    Args:
        reconstruction: (V, K, C, H, W) float64 in [0, 1].
        images: (N, C, H, W) dataset.
        strict: the success rule; None where nobody asks what is accurate.
    """

    def answer(victims: NDArray[np.int64], items: NDArray[np.int64], label: int) -> Answer:
        candidates = images[torch.from_numpy(items)].detach().to(device="cpu", dtype=torch.float64)
        guesses = reconstruction[torch.from_numpy(victims)]
        distances = _nearest(guesses, candidates)
        if strict is image_strict and guesses.shape[1] > _MANY:
            # The rule is about the distance, so that the nearest is accurate or none is.
            return distances, distances <= STRICT_RMSE * candidates[0].numel() ** 0.5
        return distances, _accurate(guesses, candidates, strict)

    return one_by_one(answer)


def _nearest(guesses: Tensor, candidates: Tensor) -> NDArray[np.float64]:
    """(V, P): distance of each candidate from the nearest of a victim's reconstructions.

    The rank by RMSE is the rank by Euclidean distance. Distances are taken from plain differences, so that copies of
    an image tie exactly; of many reconstructions only those that products say are the nearest few.
    """
    rows, pixels = guesses.flatten(2), candidates.flatten(1)
    if rows.shape[1] > _MANY:
        return np.stack([_nearest_of_many(own, pixels) for own in rows])
    distances = torch.cdist(rows.flatten(0, 1), pixels, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.view(*rows.shape[:2], len(pixels)).amin(dim=1).numpy()


def _nearest_of_many(guesses: Tensor, candidates: Tensor) -> NDArray[np.float64]:
    """(P,) of one victim: (K, D) reconstructions."""
    rough = torch.cdist(candidates, guesses, compute_mode="use_mm_for_euclid_dist")
    few = rough.topk(_FEW, largest=False).indices
    exact = [torch.linalg.vector_norm(candidates - guesses[one], dim=1) for one in few.T]
    return torch.stack(exact).amin(0).numpy()


def _accurate(guesses: Tensor, candidates: Tensor, strict: Strict | None) -> NDArray[np.bool_]:
    """(V, P): whether any of a victim's reconstructions is accurate for a candidate."""
    if strict is None:
        return np.zeros((len(guesses), len(candidates)), dtype=bool)
    return np.stack([torch.stack([strict(candidates, guess) for guess in own]).any(0).numpy() for own in guesses])
