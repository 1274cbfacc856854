"""Which reconstruction belongs to which true image of a batch (docs/verdicts.md)."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from harness.scoring.pixels import clamped_pixels


def pairwise_mse(truth: Tensor, reconstruction: Tensor) -> Tensor:
    """Mean squared error of every pair within each victim, clamped to [0, 1].

    Args:
        truth: (V, B, C, H, W), in [0, 1].
        reconstruction: (V, K, C, H, W), finite.

    Returns:
        (V, B, K) float64 on the CPU.
    """
    if truth.shape[0] != reconstruction.shape[0] or truth.shape[2:] != reconstruction.shape[2:]:
        raise ValueError(f"shapes do not fit: truth {tuple(truth.shape)}, reconstruction {tuple(reconstruction.shape)}")
    true_pixels = clamped_pixels(truth).flatten(2)
    guessed_pixels = clamped_pixels(reconstruction).flatten(2)
    # Plain differences, not the matrix-product identity: an exact copy must have distance exactly zero.
    distance = torch.cdist(true_pixels, guessed_pixels, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.square() / true_pixels.shape[-1]


def match(truth: Tensor, reconstruction: Tensor) -> Tensor:
    """For each true image the reconstruction assigned to it: the Hungarian assignment of least total clamped MSE.

    Args:
        truth: (V, B, C, H, W), in [0, 1].
        reconstruction: (V, K, C, H, W), finite; K is B, or 1 when the attack made one dummy for the whole batch.

    Returns:
        (V, B) int64 indices into axis K, on the CPU.
    """
    victims, batch = truth.shape[:2]
    guesses = reconstruction.shape[1]
    if guesses not in (1, batch):
        raise ValueError(f"{guesses} reconstructions for batches of {batch}: there must be {batch} of them, or 1")
    cost = pairwise_mse(truth, reconstruction)
    if guesses == 1:
        return torch.zeros(victims, batch, dtype=torch.int64)
    # Rows come back in order, so the columns alone are the assignment.
    return torch.stack([torch.from_numpy(linear_sum_assignment(square.numpy())[1]) for square in cost])
