"""The classification networks of torchvision by name (``torchvision:resnet18``), without trained weights."""

import difflib
import warnings
from collections.abc import Callable

from torch import nn

from harness.base.errors import UsageError

PREFIX = "torchvision:"
_COLOURS = 3


def torchvision_factory(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """A factory (image_shape, classes) of a network of torchvision.

    Raises:
        UsageError: there is no such network; the nearest names are told.
    """
    if name not in _names():
        near = difflib.get_close_matches(name, _names(), n=3)
        hint = f"did you mean {' or '.join(PREFIX + one for one in near)}?" if near else "see torchvision's list_models"
        raise UsageError(f"unknown network {name!r} of torchvision; {hint}")

    def make(image_shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision import models

        channels, height, width = image_shape
        if channels != _COLOURS:
            raise UsageError(
                f"model {PREFIX + name!r} takes images of {_COLOURS} colours, not of {channels}; use --dataset cifar10 "
                "or other images in colour, or another --model"
            )
        # Only vision transformers count their patches when they are made.
        size = {"image_size": height} if name.startswith("vit_") else {}
        if size and height != width:
            raise UsageError(f"model {PREFIX + name!r} takes square images, not {height}x{width}; use another --model")
        with warnings.catch_warnings():
            # Of how later versions will draw first weights.
            warnings.simplefilter("ignore", FutureWarning)
            return models.get_model(name, weights=None, num_classes=classes, **size)

    return make


def is_of_torchvision(name: str) -> bool:
    """Whether a name without the prefix is one of torchvision's."""
    return name in _names()


def _names() -> list[str]:
    """Of all networks that give logits of whole images."""
    from torchvision import models  # here, since it is slow to load

    return models.list_models(module=models)
