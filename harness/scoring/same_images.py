"""Victims who hold the same image are no independent draws: every interval and every test has to know who they are."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


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
    values: NDArray, clusters: int, groups: NDArray[np.int64] | None
) -> tuple[NDArray, NDArray[np.bool_] | None]:  # fmt: skip
    """Values (V, B) with one row for each independent draw, and which of them count; None where all do.

    Args:
        clusters: independent draws where no victims share images, so many consecutive victims each.
        groups: of the victims, where some do.
    """
    if groups is None:
        return values.reshape(clusters, -1), None
    rows = [values[groups == group].reshape(-1) for group in range(groups.max() + 1)]
    drawn = np.zeros((len(rows), max(map(len, rows))), dtype=values.dtype)
    counted = np.zeros(drawn.shape, dtype=bool)
    for place, row in enumerate(rows):
        drawn[place, : len(row)], counted[place, : len(row)] = row, True
    return drawn, counted
