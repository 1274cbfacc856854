"""Clipping of flat vectors, per parameter tensor or as a whole (docs/defenses.md)."""

import math

import torch
from torch import Tensor

from harness.base.layout import group_sums, spread


def noise_deviation(sigma: float, bound: float) -> float:
    """sigma * bound; without noise the bound may be infinite.

    Raises:
        ValueError: there is noise but no finite bound to scale it by.
    """
    if sigma and math.isinf(bound):
        raise ValueError("an infinite clip leaves the noise without a scale; use a finite clip or sigma=0")
    return sigma * bound if sigma else 0.0


def clip_factors(norms: Tensor, bound: float) -> Tensor:
    """Factors min(1, bound / norm) in (0, 1]; a zero norm gives 1."""
    if math.isinf(bound):
        return torch.ones_like(norms)
    return (bound / norms.clamp_min(1e-30)).clamp(max=1.0)


def example_factors(norms: Tensor, bound: float, grouping: str) -> Tensor:
    """Per-tensor clip factors (N, B, M) from per-tensor norms (N, B, M) of per-example gradients."""
    if grouping == "whole":
        whole = norms.square().sum(-1, keepdim=True).sqrt()
        return clip_factors(whole, bound).expand_as(norms)
    return clip_factors(norms, bound)


def clip(vectors: Tensor, bound: float, groups: tuple[int, ...]) -> Tensor:
    """Vectors (..., P) with the L2 norm of every group of coordinates at most ``bound``."""
    norms = group_sums(vectors.square(), groups).sqrt()
    return vectors * spread(clip_factors(norms, bound), groups)
