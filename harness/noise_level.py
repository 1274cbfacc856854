"""Noise whose level follows the gradient that it hides: not published, but known of every candidate."""

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.layout import group_sums

Whose = Literal["each", "largest", "whole"]

# Keeps the derivative of a norm finite where a tensor's gradient vanishes.
_TINY = 1e-30


@dataclass(frozen=True)
class NoiseLevel:
    """The deviation of noise on the gradient of one example, as a function of that gradient without noise.

    Attributes:
        factor: deviation by norm.
        of: whose L2 norm: ``each``, of each tensor its own; ``largest``, of all tensors the largest one; ``whole``, of
            the whole gradient.
        least, most: which the norm is held between.

    Raises:
        UsageError: there are no such numbers, or no such norm.
    """

    factor: float
    of: Whose
    least: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        if self.of not in get_args(Whose):
            known = ", ".join(get_args(Whose))
            raise UsageError(f"a level that follows the norm of {self.of!r} is not known; declare one of {known}")
        numbers = self.factor, self.least, self.most
        if not all(isinstance(one, Real) for one in numbers):
            raise UsageError(f"a level is declared with numbers, not {', '.join(map(repr, numbers))}")
        if not (0 <= self.factor < math.inf and 0 <= self.least <= self.most):
            raise UsageError("a level's factor is a number of at least 0, and 0 <= least <= most")

    def times(self, factor: float) -> "NoiseLevel":
        """That of values multiplied by a number."""
        return replace(self, factor=self.factor * factor)

    def deviations(self, gradients: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Of each tensor's coordinates (R, M), float64, differentiable, for gradients (R, P), clipped as the defense
        does."""
        squares = group_sums(gradients.square(), sizes).double()
        if self.of == "whole":
            squares = squares.sum(1, keepdim=True).expand_as(squares)
        norms = (squares + _TINY).sqrt()
        if self.of == "largest":
            norms = norms.amax(1, keepdim=True).expand_as(norms)
        return self.factor * torch.clamp(norms, self.least, self.most)
