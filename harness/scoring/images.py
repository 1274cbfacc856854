"""Images beside images: pixels, which reconstruction belongs to which truth, and truths that are alike."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

# The one place where reconstructions are checked and brought into the range of images.


def exact_pixels(images: Tensor) -> Tensor:
    """A float64 copy on the CPU, un-clamped: scores must not depend on the device or precision of the attack.

    Raises:
        ValueError: a value is NaN or infinite; whoever ran the attack must have put something finite in its place
            (and recorded the divergence), so that no victim silently drops out of an average.
    """
    pixels = images.detach().to(device="cpu", dtype=torch.float64)
    if not torch.isfinite(pixels).all():
        raise ValueError("images to score must be finite; replace diverged reconstructions before scoring them")
    return pixels


def clamped_pixels(images: Tensor) -> Tensor:
    """Like ``exact_pixels``, clamped to [0, 1]: an attacker can always clamp, so headline distances do."""
    return exact_pixels(images).clamp(0.0, 1.0)


# Which reconstruction belongs to which true image of a batch (docs/verdicts.md).


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


# An example that a victim trains on in every pass is one example, however many places it has.


def repeats_of(indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each place (V, B) holds an image that an earlier place of its victim holds too."""
    repeats = np.ones(indices.shape, dtype=bool)
    for row, own in enumerate(indices):
        repeats[row, np.unique(own, return_index=True)[1]] = False
    return repeats


def best_first(order: Tensor, truth: Tensor, reconstruction: Tensor, indices: NDArray[np.int64]) -> Tensor:
    """The assignment of :func:`match`, so that of the places with one image the first has the nearest reconstruction.

    Args:
        order: (V, B) of truths (V, B, ...) to reconstructions (V, K, ...). indices: (V, B) which images they are.
    """
    order = order.clone()
    for row in np.flatnonzero(repeats_of(indices).any(1)):
        apart = pairwise_mse(truth[row : row + 1], reconstruction[row : row + 1])[0]
        for image in np.unique(indices[row]):
            places = torch.from_numpy(np.flatnonzero(indices[row] == image))
            found = order[row, places]
            order[row, places] = found[apart[places[0], found].argsort(stable=True)]
    return order


# Victims who hold the same image are no independent draws: every interval and every test has to know who they are.


def groups_of(indices: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """(V,) the group of each victim: those who share an image (V, B), directly or through others, have the same.

    None where no two victims share any.
    """
    victims = np.repeat(np.arange(len(indices)), indices.shape[1])
    images = np.unique(indices, return_inverse=True)[1].reshape(-1)
    shape = len(indices), int(images.max(initial=-1)) + 1
    held = coo_array((np.ones(len(images)), (victims, images)), shape=shape).tocsr()
    count, groups = connected_components(held @ held.T, directed=False)
    return None if count == len(indices) else groups.astype(np.int64)


def draws_of(
    values: NDArray, clusters: int, groups: NDArray[np.int64] | None, repeats: NDArray[np.bool_] | None = None
) -> tuple[NDArray, NDArray[np.bool_] | None]:  # fmt: skip
    """Values (V, B) with one row for each independent draw, and which of them count; None where all do.

    Args:
        clusters: independent draws where no victims share images, so many consecutive victims each.
        groups: of the victims, where some do.
        repeats: (V, B) places that do not count; None where all do, as where each victim has one value.
    """
    if repeats is not None and (not repeats.any() or values.shape != repeats.shape):
        repeats = None
    if groups is None:
        return values.reshape(clusters, -1), None if repeats is None else ~repeats.reshape(clusters, -1)
    rows = [values[groups == group].reshape(-1) for group in range(groups.max() + 1)]
    drawn = np.zeros((len(rows), max(map(len, rows))), dtype=values.dtype)
    counted = np.zeros(drawn.shape, dtype=bool)
    for place, row in enumerate(rows):
        own = True if repeats is None else ~repeats[groups == place].reshape(-1)
        drawn[place, : len(row)], counted[place, : len(row)] = row, own
    return drawn, counted
