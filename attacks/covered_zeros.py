"""How likely a coordinate was sent at all, where noise that came after covers the zeros of those that were left out.

Whoever takes all for sent holds a candidate's whole gradient against one most of which was thrown away, and finds it
improbable although it is true.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from harness.observation import Observation

# A candidate near to the truth orders its coordinates nearly as the truth does.
_OTHERWISE = 0.01


def shares_sent(observation: Observation, candidate: Tensor) -> Iterator[tuple[float, Tensor]]:
    """In which shares of all looks a coordinate may have been sent, and how likely each is: (R, P), or (1, P).

    Args:
        observation: one whose ``carrying`` is known.
        candidate: gradients (R, P) as they were before any coordinate was cut.
    """
    chosen = observation.carrying
    assert chosen is not None
    sent = probability_sent(observation, candidate)
    looks = chosen.looks if chosen.choice == "chance" else 1
    for times in range(looks + 1):
        yield times / looks, math.comb(looks, times) * sent**times * (1 - sent) ** (looks - times)


def probability_sent(observation: Observation, candidate: Tensor) -> Tensor:
    """Of each coordinate of gradients (R, P) in one look, or of (1, P) where it is the same for all.

    Where the largest of a group are sent, those of the candidate; else as many of a group as may be, whichever, of
    those that are large enough. Of a row that shows its zeros, as noise on what is sent alone leaves them, what is no
    zero was sent.
    """
    chosen, target = observation.carrying, observation.target
    assert chosen is not None
    groups = observation.model.layout.groups(chosen.grouping)
    parts = zip(candidate.detach().abs().split(groups, 1), chosen.counts, strict=True)
    sent = torch.cat([_of_group(sizes, count, chosen.choice == "largest", chosen.least) for sizes, count in parts], 1)
    shows_zeros = (target != 0).sum(1, keepdim=True) <= min(chosen.most, target.shape[1] - 1)
    return sent.where(~shows_zeros, 1.0) if bool(shows_zeros.any()) else sent


def chosen_alone(observation: Observation, candidate: Tensor) -> Tensor:
    """Gradients (R, P) with zeros for all but the largest of each group, where an update is clipped only after that."""
    chosen = observation.carrying
    if chosen is None or not chosen.clipped:
        return candidate
    parts = zip(candidate.split(observation.model.layout.groups(chosen.grouping), 1), chosen.counts, strict=True)
    return torch.cat([part.where(_largest(part.detach().abs(), count), 0.0) for part, count in parts], 1)


def _of_group(sizes: Tensor, count: int, largest: bool, least: float) -> Tensor:
    """The same of the magnitudes (R, n) of a group, of which so many are sent."""
    if largest and 0 < count < sizes.shape[1]:
        return torch.where(_largest(sizes, count), 1 - _OTHERWISE, _OTHERWISE)
    if not least:
        return sizes.new_full((1, sizes.shape[1]), count / sizes.shape[1])
    enough = sizes > least
    share = (count / enough.sum(1, keepdim=True).clamp_min(1)).clamp_max(1 - _OTHERWISE)
    return torch.where(enough, share, _OTHERWISE * share)


def _largest(sizes: Tensor, count: int) -> Tensor:
    """Which (R, n) magnitudes are the so many largest of their row."""
    places = sizes.topk(count, dim=1).indices
    return torch.zeros_like(sizes, dtype=torch.bool).scatter(1, places, True)
