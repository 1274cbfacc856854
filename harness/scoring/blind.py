"""How probable it is that a guess which has seen nothing is accurate (docs/verdicts.md)."""

from functools import lru_cache

import torch
from torch import Tensor

from harness.scoring.success import STRICT_RMSE

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
