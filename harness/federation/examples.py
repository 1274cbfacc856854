"""Per-example gradients of a local step, as the hooks of a defense see them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class ExampleGradients(Protocol):
    """Gradients (N, B, P) of every example's own loss, materialised only when something asks for them.

    Clipping needs ``norms`` and ``weighted_sum`` only. A place of the batch that no example was drawn for is not
    ``present`` and counts as zero in every norm and sum; what counts examples must look at ``present``, since an
    example's own gradient may be zero too.
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each parameter tensor."""
        ...

    @property
    def present(self) -> Tensor:
        """Which places (N, B) of the batch hold an example: booleans."""
        ...

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        ...

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        ...

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P): the sum over the expected batch size."""
        ...

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        ...


GradientSource = Callable[[int, Tensor], ExampleGradients]
"""Example gradients of N clients in a local step, from its number and the weights (N, P) before it."""


@dataclass(frozen=True)
class Batches:
    """Local batches of K clients: places (K, L, B) in each client's data, and which of them hold an example (K, L, B).

    ``present`` is None where all do.
    """

    places: Tensor
    present: Tensor | None

    def of(self, rows: slice) -> "Batches":
        """Those of some of the clients."""
        return Batches(self.places[rows], None if self.present is None else self.present[rows])
