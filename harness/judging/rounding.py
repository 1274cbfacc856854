"""What rounding inside a client can make of its steps, coordinate by coordinate.

A step of Adam has the size of the learning rate however small the gradient is, so that where a gradient is next to 0
the rounding of floats decides it. How far that goes is seen by playing the same clients again, from weights that are
moved by as little as rounding moves what is computed of them.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.base.randomness import generator
from harness.judging.federation import CapturedClients

# Relative to a weight: some times what single precision rounds by, and what half precision does (bfloat16, TF32).
SINGLE, HALF = 2.0**-20, 2.0**-6
# Of coordinates whose gradient is nothing but rounding, one in 2^16 has the same sign in all of them.
_REPLAYS = 16


def moved_by_rounding(
    captured: CapturedClients, made: Tensor, level: float, play: Callable[[CapturedClients], Tensor]
) -> Tensor:
    """How far each coordinate of what clients send (V, P) may move when weights do so by ``level`` of themselves.

    Args:
        made: what they send without that. play: makes it of clients.
    """
    random = generator("rounding")
    most = torch.zeros_like(made)
    for _ in range(_REPLAYS):
        signs = 2 * torch.randint(2, captured.before.shape, generator=random).to(captured.before) - 1
        moved = play(replace(captured, before=captured.before * (1 + level * signs)))
        most = most.maximum((moved - made).abs())
    return 2 * most  # the largest of so few is easily passed by one more
