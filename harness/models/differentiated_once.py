"""What layers are told of the pass that they are in: that their weights' gradient is differentiated by images only."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_BATCH: ContextVar[Tensor | None] = ContextVar("batch", default=None)


@contextmanager
def gradient_once(batch: Tensor) -> Iterator[None]:
    """Around the forward pass on a batch whose gradient by the weights is taken in one pass that creates a graph, and
    is differentiated by the batch only."""
    token = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(token)


def passes(values: Tensor) -> tuple[bool, bool]:
    """``kernels_once`` and ``first`` of :class:`~harness.models.bilinear.Bilinear` for a layer with this input."""
    batch = _BATCH.get()
    return batch is not None, values is batch
