"""Messages of a tampering server to the clients of a cell, and the distance of such a round from an honest one.

A client that looks at weights and gradients sees that distance. It is that of Kolmogorov and Smirnov between all values
of a tensor, over a few clients together. Gradients differ between honest clients too, by networks and images, so the
distance between honest ones stands beside it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.datasets import Dataset, Victims
from harness.experiment import CellSettings
from harness.models import RowModel
from harness.models.imprint import WithInsertedModule
from harness.results.record import Detectable
from harness.tampering import Tamper


@dataclass(frozen=True, eq=False)
class Sent:
    """Weights that a server sends to each client. Nothing of them depends on private data.

    ``public``: images (n, C, H, W) of the same kind as the victims', none of them theirs.
    """

    tamper: Tamper
    public: Tensor

    def first(self, model: RowModel, weights: Tensor) -> Tensor:
        """Weights (N, P) for the first client of each of N rounds, in the place of honest ones."""
        return self.tamper.send(model, weights, self.public.to(weights), 0)

    def to_all(self, model: RowModel, weights: Tensor, clients: int) -> Tensor:
        """Return the weights (N * K, P) for all clients of each round, one round after another; ``clients`` is K."""
        public = self.public.to(weights)
        each = [self.tamper.send(model, weights, public, client) for client in range(clients)]
        return torch.stack(each, 1).flatten(0, 1)


def tampering_of(settings: CellSettings) -> Tamper | None:
    """Return what the cell's attack does to the network before the round; None where it follows the protocol.

    Raises:
        UsageError: that is impossible for so many clients or examples, or these clients would not train it.
    """
    tamper = settings.build_attack().tamper(settings.together, settings.examples // settings.together)
    if tamper and settings.sent_as:
        raise UsageError(f"attack {settings.attack!r} sends weights in full precision; leave --sent-as out")
    if tamper and tamper.module and settings.build_defense().refuses_module(tamper.module):
        raise UsageError(
            f"clients under defense {settings.defense!r} train no network with a module that was not agreed on, and "
            f"attack {settings.attack!r} puts one before it; use --attack trap_weights, or another --defense"
        )
    return tamper


def sent_by(tamper: Tamper, public: Dataset | None, settings: CellSettings) -> Sent:
    """Return what a tampering server sends in a cell.

    Raises:
        UsageError: there are no public data to make it from.
    """
    if public is None:
        raise UsageError(
            f"attack {settings.attack!r} makes the weights that it sends from public data; use --prior auto"
        )
    return Sent(tamper, public.images)


CLIENTS = 8
_VALUES, _FEW = 20_000, 100
_OWN = "network."


def detectable(
    tamper: Tamper, sent: tuple[RowModel, Tensor], honest: tuple[RowModel, Tensor], truth: Victims, batch: int
) -> Detectable:
    """Return what the first clients of a cell would see.

    Args:
        tamper: what was done.
        sent: the network as it was sent, with weights (V, P), those of each round's first client.
        honest: the same network as it would have been sent.
        truth: of the victims.
        batch: images of a client's first local step.
    """
    count = min(CLIENTS, len(truth.labels))
    images, labels = (values[:count, :batch].to(sent[1].device) for values in (truth.images, truth.labels))
    images = images.to(sent[1])
    weights, usual = (_named(model, flat[:count]) for model, flat in (sent, honest))
    weights_ks, weights_tensor = _largest(weights, usual)
    found = [_gradients(model, flat[:count], images, labels) for model, flat in (sent, honest)]
    half = count // 2
    facts = {}
    if half:
        others = {name: values[half:] for name, values in found[1].items()}
        ours, alike = ({name: values[:half] for name, values in one.items()} for one in found)
        facts["gradients"], facts["gradients_tensor"] = _largest(ours, others)
        facts["gradients_honest"], _ = _largest(alike, others)
    return Detectable(
        module=tamper.module, weights=weights_ks, weights_tensor=weights_tensor,
        dead_units=_dead(*sent, images), dead_units_honest=_dead(*honest, images), **facts,
    )  # fmt: skip


def _named(model: RowModel, flat: Tensor) -> dict[str, Tensor]:
    """The network's own tensors (N, ...), by the name that they have without a module before it."""
    inside = isinstance(model.plain_module, WithInsertedModule)
    named = model.layout.split(flat)
    return {name.removeprefix(_OWN): part for name, part in named.items() if not inside or name.startswith(_OWN)}


def _gradients(model: RowModel, weights: Tensor, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the mean loss of each client's batch, without any defense; one client after another."""
    rows = [
        _named(model, model.gradient(weights[row].expand(2, -1), images[row].expand(2, *images.shape[1:]),
                                     labels[row].expand(2, -1)))
        for row in range(len(weights))
    ]  # fmt: skip
    return {name: torch.stack([row[name][0] for row in rows]) for name in rows[0]}


def _largest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, str]:
    """The tensor whose values differ most, with their distance; of a few values none could be told."""
    large = {name: values for name, values in ours.items() if values[0].numel() >= _FEW}
    distances = {name: _apart(_values(ours[name]), _values(theirs[name])) for name in large or ours}
    name = max(distances, key=lambda one: distances[one])
    return distances[name], name


def _apart(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """The largest difference between two empirical distribution functions."""
    places = np.concatenate([ours, theirs])
    shares = [np.searchsorted(np.sort(one), places, side="right") / len(one) for one in (ours, theirs)]
    return float(np.abs(shares[0] - shares[1]).max())


def _values(tensor: Tensor) -> NDArray[np.float64]:
    flat = tensor.detach().double().cpu().flatten()
    return flat[:: -(-len(flat) // _VALUES)].numpy()


def _dead(model: RowModel, weights: Tensor, images: Tensor) -> float | None:
    """Share of units of rectified linear layers that are 0 for a client's whole batch, averaged over clients."""
    layers = [layer for layer in model.plain_module.modules() if isinstance(layer, nn.ReLU)]
    if not layers:
        return None
    silent, units = 0, 0

    def note(layer: nn.Module, given: object, output: Tensor) -> None:
        nonlocal silent, units
        alive = output.flatten(1).gt(0).any(0)
        silent, units = silent + int((~alive).sum()), units + len(alive)

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.no_grad():
            for flat, batch in zip(weights, images, strict=False):
                model.plain(flat)(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return silent / units
