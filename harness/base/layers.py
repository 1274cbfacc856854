"""What layers of a network say of themselves: which are random while it trains, and what tells two networks apart."""

import hashlib
import re
from collections.abc import Iterator

from torch import nn

# What is changed of a network before it is played, and changes nothing of what it computes.
_ASIDE = re.compile(r",? ?(inplace=True|track_running_stats=\w+)")


def drops_out(layer: nn.Module) -> bool:
    """Whether a layer is one that drops out units, or, as torchvision's stochastic depth, whole branches."""
    return isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth"


def is_random(layer: nn.Module) -> bool:
    """Whether a layer drops out anything while it trains."""
    return drops_out(layer) and float(layer.p) > 0  # pyright: ignore[reportArgumentType]


def random_layer(network: nn.Module) -> str | None:
    """Return the name of a layer that is random as the network stands; None where there is none."""
    return next((name for name, layer in network.named_modules() if layer.training and is_random(layer)), None)


def digest_of_layers(network: nn.Module) -> str:
    """Return 16 hexadecimal digits that differ where layers, their settings or their functions do; weights count not.

    How much is dropped out is no part of it, nor what a layer keeps to itself.
    """
    return hashlib.sha256("\n".join(_said(network)).encode()).hexdigest()[:16]


def _said(network: nn.Module) -> Iterator[str]:
    for name, layer in network.named_modules():
        settings = "" if drops_out(layer) else _ASIDE.sub("", layer.extra_repr())
        own = sorted(
            f"{key}={getattr(value, '__qualname__', type(value).__qualname__)}"
            for key, value in vars(layer).items()
            if callable(value) and not key.startswith("_")
        )
        yield f"{name}: {type(layer).__qualname__}({settings}) {' '.join(own)}"
