"""What a server that tampers sends to the clients of a cell before they play their round."""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.datasets import Dataset
from harness.experiment import CellSettings
from harness.models import RowModel
from harness.tampering import Tamper


@dataclass(frozen=True, eq=False)
class Sent:
    """What is sent to whom: nothing of it depends on private data.

    ``public``: images (n, C, H, W) of the same kind as the victims', none of them theirs.
    """

    tamper: Tamper
    public: Tensor

    def first(self, model: RowModel, weights: Tensor) -> Tensor:
        """Weights (N, P) for the first client of each of N rounds, in the place of honest ones."""
        return self.tamper.send(model, weights, self.public.to(weights), 0)

    def to_all(self, model: RowModel, weights: Tensor, clients: int) -> Tensor:
        """The same for all clients of each round (N * K, P), one round after another; ``clients`` is K."""
        public = self.public.to(weights)
        each = [self.tamper.send(model, weights, public, client) for client in range(clients)]
        return torch.stack(each, 1).flatten(0, 1)


def tampering_of(settings: CellSettings) -> Tamper | None:
    """What the cell's attack does to the network before the round; None for one that reads along only.

    Raises:
        UsageError: that is impossible for so many clients or examples, or these clients would not train it.
    """
    tamper = settings.build_attack().tamper(settings.together, settings.examples // settings.together)
    if tamper and tamper.module and settings.build_defense().refuses_module(tamper.module):
        raise UsageError(
            f"clients under defense {settings.defense!r} train no network with a module that was not agreed on, and "
            f"attack {settings.attack!r} puts one before it; use --attack trap_weights, or another --defense"
        )
    return tamper


def sent_by(tamper: Tamper, public: Dataset | None, settings: CellSettings) -> Sent:
    """What a tampering server sends in a cell.

    Raises:
        UsageError: there are no public data to make it from.
    """
    if public is None:
        raise UsageError(
            f"attack {settings.attack!r} makes the weights that it sends from public data; use --prior auto"
        )
    return Sent(tamper, public.images)
