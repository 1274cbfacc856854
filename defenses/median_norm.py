"""The median norm of a round's updates, from counts that add up over clients however they are streamed."""

import torch
from torch import Tensor

_BINS_PER_OCTAVE = 16
_OCTAVES = 40  # norms from 2^-20 to 2^20, to within 2.2%
_BINS = _BINS_PER_OCTAVE * _OCTAVES


def norm_counts(vectors: Tensor) -> Tensor:
    """A one in the bin of each vector's L2 norm: (N, P) -> (N, bins); summed over clients, a histogram."""
    octaves = vectors.norm(dim=-1).clamp_min(1e-30).log2() + _OCTAVES / 2
    bins = (octaves * _BINS_PER_OCTAVE).floor().long().clamp(0, _BINS - 1)
    return torch.nn.functional.one_hot(bins, _BINS).to(vectors)


def median_norm(counts: Tensor) -> Tensor:
    """The (lower) median of the norms behind a histogram (bins,): the middle of its bin, a scalar."""
    half = counts.sum() / 2
    found = (counts.cumsum(0) >= half).long().argmax()
    return torch.exp2((found.to(counts) + 0.5) / _BINS_PER_OCTAVE - _OCTAVES / 2)
