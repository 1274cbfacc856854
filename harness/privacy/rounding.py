"""Thousands of distinct sigmas as a few: rounding down costs a little privacy loss and is never wrong."""

import math

import numpy as np


def rounded_down(sigmas: np.ndarray, groups: int | None) -> np.ndarray:
    """Each sigma (S,) replaced by the smallest of its group, groups of equal width in log sigma; a rigorous bound.

    Unchanged with at most ``groups`` distinct values, or where ``groups`` is None.
    """
    distinct = np.unique(sigmas)
    if groups is None or len(distinct) <= groups:
        return sigmas
    low, high = math.log(distinct[0]), math.log(distinct[-1])
    group = np.minimum(((np.log(distinct) - low) / (high - low) * groups).astype(int), groups - 1)
    first_of_group = distinct[np.searchsorted(group, group, side="left")]
    return first_of_group[np.searchsorted(distinct, sigmas)]
