"""Weights and modules that a tampering server sends in the place of the network that clients agreed to train."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from harness.models import RowModel
from harness.models.imprint import Front


class Sender(Protocol):
    """Weights (N, P) that a server sends in the place of the honest ones.

    What it sends follows from the network, public images (n, C, H, W) and which of a round's clients, from 0, it is
    for; it knows nobody's private data. Sending what was sent already changes nothing.
    """

    def __call__(self, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor: ...


@dataclass(frozen=True)
class Tamper:
    """Means by which an attack of the tier ``tampering`` tampers.

    Attributes:
        send: what it sends.
        front: makes a module that it puts before the network; None where only weights are changed.
        module: that module in words, None without.
    """

    send: Sender
    front: Front | None = None
    module: str | None = None
