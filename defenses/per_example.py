"""Per-example gradients of a local step, as the hooks of a defense see them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from harness.layout import group_sums, spread


class ExampleGradients(Protocol):
    """Gradients (N, B, P) of every example's own loss, materialised only when something asks for them.

    Clipping needs ``norms`` and ``weighted_sum`` only. An example that was not sampled counts as zero everywhere.
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each parameter tensor."""
        ...

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        ...

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        ...

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        ...

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        ...


@dataclass
class PerExample:
    """Example gradients that are computed as a whole when first needed."""

    compute: Callable[[], Tensor] = field(repr=False)
    sizes: tuple[int, ...]

    @cached_property
    def _gradients(self) -> Tensor:
        return self.compute()

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        return self._gradients

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        return group_sums(self._gradients.square(), self.sizes).sqrt()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        return (self._gradients * spread(factors, self.sizes)).sum(1)

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        return self._gradients.mean(1)
