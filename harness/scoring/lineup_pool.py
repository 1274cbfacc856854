"""The images one class offers a lineup, and how far each lies from every victim's reconstructions."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from harness.randomness import derive_seed


@dataclass(frozen=True)
class ClassPool:
    """One class. Pool items 0 .. T-1 are its true images (of any victim), the rest are decoys nobody used.

    ``label``: the class;
    ``images``: (P,) dataset indices of the items;
    ``truths``: T;
    ``slots``: (S, 2) victim and batch position of every true image of the class;
    ``items``: (S,) the item that is scored as each slot's truth;
    ``ranks``: (S, P) int32, twice the mid-rank of each item by distance from the slot's reconstructions (1 = nearest).
    """

    label: int
    images: NDArray[np.int64]
    truths: int
    slots: NDArray[np.int64]
    items: NDArray[np.int64]
    ranks: NDArray[np.int32]

    @property
    def lineup_size(self) -> int:
        return len(self.images) - self.truths + 1


def class_pools(
    reconstruction: Tensor,
    truth_indices: NDArray[np.int64],
    images: Tensor,
    labels: NDArray[np.int64],
    seed: int,
    max_decoys: int,
) -> list[ClassPool]:
    """The pools of all classes that have decoys; classes used up by the victims have none and are left out.

    Args:
        reconstruction: (V, K, U) float64 in [0, 1].
        truth_indices: (V, B) into the dataset.
        images: (N, C, H, W) dataset.
        labels: (N,).
        seed: key of the choice of decoys, with the class.
        max_decoys: most decoys per class.
    """
    unused = np.ones(len(labels), dtype=bool)
    unused[truth_indices] = False
    true_labels = labels[truth_indices]
    pools = []
    for label in np.unique(true_labels).tolist():
        candidates = np.flatnonzero(unused & (labels == label))
        if len(candidates) == 0:
            continue
        random = np.random.default_rng(derive_seed("lineup decoys", seed, label))
        decoys = random.choice(candidates, size=min(max_decoys, len(candidates)), replace=False)
        slots = np.argwhere(true_labels == label)
        truths, items = np.unique(truth_indices[tuple(slots.T)], return_inverse=True)
        pool_images = np.concatenate([truths, decoys])
        ranks = _doubled_ranks(reconstruction, slots[:, 0], images[torch.from_numpy(pool_images)])
        pools.append(ClassPool(label, pool_images, len(truths), slots, items, ranks))
    return pools


def _doubled_ranks(reconstruction: Tensor, victims: NDArray[np.int64], candidates: Tensor) -> NDArray[np.int32]:
    """(S, P): twice the mid-rank of each candidate among all, by RMSE to the nearest of the victim's reconstructions.

    The rank by RMSE is the rank by Euclidean distance. Distances are taken from plain differences, so that copies of
    an image tie exactly; ranks are doubled because mid-ranks of ties are halves and integers compare fastest.
    """
    pixels = candidates.detach().to(device="cpu", dtype=torch.float64).flatten(1)
    distinct, slot_rows = np.unique(victims, return_inverse=True)
    guesses = reconstruction[torch.from_numpy(distinct)]
    distances = torch.cdist(guesses.flatten(0, 1), pixels, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.view(len(distinct), guesses.shape[1], len(pixels)).amin(dim=1).numpy()
    return (2.0 * rankdata(nearest, method="average", axis=1)).astype(np.int32)[slot_rows]
