"""How probable it is that a guess which has seen nothing is accurate (docs/verdicts.md)."""

import torch
from torch import Tensor

from harness.scoring.success import STRICT_RMSE

_MOST = 400  # images of a class that stand for all of them


def blind_strict(images: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """The largest probability that one guess is a strict success, for victims of some classes, the class known.

    A guess is accurate for images in a ball around it. A ball of twice the radius around any of these holds all of
    them, so no guess is accurate for more images than the fullest such ball holds.

    Args:
        images: (N, C, H, W) in [0, 1], which victims are drawn from.
        labels: (N,), their classes.
        classes: (V, n), those of the victims.

    Returns:
        (V, n) probabilities in (0, 1].
    """
    found = torch.ones(int(labels.max()) + 1, dtype=torch.float64)
    for label in classes.unique().tolist():
        own = images[labels == label].flatten(1)
        own = own[:: -(-len(own) // _MOST)].double()
        distances = torch.cdist(own, own) / own.shape[1] ** 0.5
        found[label] = (distances <= 2 * STRICT_RMSE).double().mean(1).max()
    return found[classes.long()]
