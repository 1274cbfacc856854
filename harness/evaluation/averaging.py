"""What an adversary makes of the same record seen several times: the average, in which independent noise cancels.

See docs/attacks.md. R looks at noise of variance v leave v / R.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def average(looks: Iterable[Tensor], sparse: bool = False) -> Tensor:
    """The mean of R >= 1 tensors of one shape, one in memory at a time; equal looks give exactly the look itself.

    Args:
        looks: what was read, look by look.
        sparse: zeros are coordinates known to be left out; each is averaged over the looks that have it.

    Returns:
        The mean in the dtype of the looks, taken in float64.
    """
    iterator = iter(looks)
    first = next(iterator)
    mean, times = first.double(), _there(first, sparse)
    for look in iterator:
        there = _there(look, sparse)
        times = times + there
        # A running mean does not move, not even by rounding, when it meets itself.
        mean = mean + there * (look.double() - mean) / times.clamp(min=1)
    return mean.to(first.dtype)


def _there(look: Tensor, sparse: bool) -> Tensor:
    """1 for each coordinate of the look that was not left out; one number where none ever is."""
    return (look != 0).double() if sparse else torch.ones((), dtype=torch.float64, device=look.device)
