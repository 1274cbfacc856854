"""How likely a coordinate was sent at all, where noise that came after covers the zeros of those that were left out.

Whoever takes all for sent holds a candidate's whole gradient against one most of which was thrown away, and finds it
improbable although it is true.
"""

import torch
from torch import Tensor

from harness.observation import Observation

# A candidate near to the truth orders its coordinates nearly as the truth does.
_OTHERWISE = 0.01


def probability_sent(observation: Observation, candidate: Tensor) -> Tensor:
    """Of each coordinate of gradients (R, P), or of (1, P) where it is the same for all.

    Where the largest of a group are sent, those of the candidate; else as many of a group as may be, whichever.

    Args:
        observation: one whose ``carrying`` is known.
        candidate: gradients (R, P) as they were before any coordinate was cut.
    """
    chosen = observation.carrying
    assert chosen is not None
    groups, parts = observation.model.layout.groups(chosen.grouping), []
    for part, count in zip(candidate.detach().split(groups, 1), chosen.counts, strict=True):
        if not chosen.largest:
            parts.append(part.new_full((1, part.shape[1]), count / part.shape[1]))
            continue
        largest = part.abs().topk(count, dim=1).indices
        parts.append(torch.full_like(part, _OTHERWISE).scatter(1, largest, 1 - _OTHERWISE))
    return torch.cat(parts, 1)
