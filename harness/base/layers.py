"""Facts that layers state about themselves: which are random in training, and what tells two networks apart."""

import hashlib
import re
from collections.abc import Iterator

from torch import nn

# What changes nothing of a gradient, or is changed of a network before it is played.
_ASIDE = re.compile(r",? ?(inplace=True|(track_running_stats|momentum)=[^,)]*|0x[0-9a-f]+)")


def drops_out(layer: nn.Module) -> bool:
    """Return whether a layer is one that drops out units, or, as torchvision's stochastic depth, whole branches."""
    return isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth"


def drops_within(layer: nn.Module) -> bool:
    """Return whether a layer drops out units beside what it is there for: attention, and recurrent layers."""
    return isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and float(layer.dropout) > 0


def is_random(layer: nn.Module) -> bool:
    """Return whether a layer drops out anything while it trains."""
    return drops_within(layer) or (drops_out(layer) and float(layer.p) > 0)  # pyright: ignore[reportArgumentType]


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
        kind = type(layer)
        if isinstance(layer, nn.modules.loss._Loss):
            continue
        # What somebody's own layers print may be anything, such as a number that is learnt.
        printed = kind.__module__.startswith("torch.") and not drops_out(layer) and not hasattr(layer, "dropout")
        settings = _ASIDE.sub("", layer.extra_repr()) if printed else ""
        own = sorted(f"{key}={said}" for key, value in vars(layer).items() if (said := _function(key, value)))
        yield f"{name}: {kind.__qualname__}({settings}) {' '.join(own)}"


def _function(key: str, value: object) -> str | None:
    """The name of a function that a layer may compute with; None of what is none, or a loss."""
    if not callable(value) or isinstance(value, type) or key.startswith("_") or key == "forward":
        return None
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return None if "loss" in name or "cross_entropy" in name else name
