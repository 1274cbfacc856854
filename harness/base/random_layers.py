"""Layers whose forward pass is random while a network trains, so that its gradients are."""

from torch import nn


def is_random(layer: nn.Module) -> bool:
    """Whether a layer drops out units, or, as torchvision's stochastic depth, whole branches."""
    drops = isinstance(layer, nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth"
    return drops and float(layer.p) > 0  # pyright: ignore[reportArgumentType]


def random_layer(network: nn.Module) -> str | None:
    """Return the name of a layer that is random as the network stands; None where there is none."""
    return next((name for name, layer in network.named_modules() if layer.training and is_random(layer)), None)
