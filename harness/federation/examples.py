"""Per-example gradients of a local step, as the operations of a defense see them, and what they are computed from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from harness.base.vectors import Layout


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
        """Return which places (N, B) of the batch hold an example: booleans."""
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


class Network(Protocol):
    """Part of the clients' network that an operation may call."""

    @property
    def layout(self) -> Layout:
        """Slices of the flat weights."""
        ...

    def logits(self, weights: Tensor, images: Tensor) -> Tensor:
        """Scores (N, B, classes) of examples (N, B, ...) by networks with weights (N, P), differentiable in both."""
        ...


@dataclass(frozen=True)
class NetworkBatch:
    """Input of a local step of N clients.

    Attributes:
        network: the function. weights: (N, P), before the step.
        inputs: (N, B, ...), examples. labels: (N, B). present: (N, B), which places hold an example; None for all.
    """

    network: Network
    weights: Tensor
    inputs: Tensor
    labels: Tensor
    present: Tensor | None = None


@dataclass(frozen=True)
class NetworkGradients:
    """A source of gradients that also shows what they are computed from, for operations that read or change that.

    Attributes:
        batch: of N clients in a local step, from its number and the weights (N, P) before it.
        gradients: of the examples of such a batch.
    """

    batch: Callable[[int, Tensor], NetworkBatch]
    gradients: Callable[[NetworkBatch], ExampleGradients]

    def __call__(self, step: int, weights: Tensor) -> ExampleGradients:
        return self.gradients(self.batch(step, weights))


@dataclass(frozen=True)
class LocalStep:
    """Result of a local step: what SGD consumes, and what else exists in the client's memory.

    Attributes:
        step: (N, P), what SGD consumes.
        clip_factors: (N, B, M), the factor applied to each example's gradient per tensor; None without clipping.
        examples: (N, B, P), sanitised per-example gradients where noise is added per example, else None.
        noise: standard deviation of the noise on a coordinate of ``step``, one number or (N,); None without.
    """

    step: Tensor
    clip_factors: Tensor | None = None
    examples: Tensor | None = None
    noise: Tensor | float | None = None


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
