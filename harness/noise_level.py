"""Noise whose level follows the gradient that it hides: not published, but known of every candidate."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from harness.vectors.layout import group_sums

# Keeps the derivative of a norm finite where a tensor's gradient vanishes.
_TINY = 1e-30


@dataclass(frozen=True)
class NoiseLevel:
    """The deviation of noise on the gradient of one example, as a function of that gradient without noise.

    Attributes:
        factor: deviation by norm.
        of: whose L2 norm: ``each``, of each tensor its own; ``largest``, of all tensors the largest one.
        least, most: which the norm is held between.
    """

    factor: float
    of: Literal["each", "largest"]
    least: float = 0.0
    most: float = float("inf")

    def times(self, factor: float) -> "NoiseLevel":
        """That of values multiplied by a number."""
        return replace(self, factor=self.factor * factor)

    def deviations(self, gradients: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Of each tensor's coordinates (R, M), float64, differentiable, for gradients (R, P), clipped as the defense
        does."""
        squares = group_sums(gradients.square(), sizes).double()
        norms = (squares + _TINY).sqrt()
        if self.of == "largest":
            norms = norms.amax(1, keepdim=True).expand_as(norms)
        return self.factor * torch.clamp(norms, self.least, self.most)
