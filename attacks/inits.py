"""Initial dummy images (docs/attacks.md).

Every scheme draws one stream per row, so a row's start does not depend on how rows are grouped.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator

ImageShape = tuple[int, ...]


def _uniform(shape: ImageShape, random: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=random)


def _gauss(shape: ImageShape, random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random)


def _pattern(parts: int) -> Callable[[ImageShape, torch.Generator], Tensor]:
    def scheme(shape: ImageShape, random: torch.Generator) -> Tensor:
        *lead, height, width = shape
        # A table row can only be divided along its features; its patch is the same share of it all the same.
        down, across = (1, parts * parts) if height == 1 else (parts, parts)
        patch = torch.rand((*lead, math.ceil(height / down), math.ceil(width / across)), generator=random)
        return patch.repeat(*[1] * len(lead), down, across)[..., :height, :width]

    return scheme


def _constant(value: float) -> Callable[[ImageShape, torch.Generator], Tensor]:
    return lambda shape, random: torch.full(shape, value)


def _channel(index: int) -> Callable[[ImageShape, torch.Generator], Tensor]:
    def scheme(shape: ImageShape, random: torch.Generator) -> Tensor:
        if shape[-3] != 3:
            raise UsageError("initialisations 'R', 'G' and 'B' need colour images; use init=pattern-1/4")
        image = torch.zeros(shape)
        image[..., index, :, :] = 1.0
        return image

    return scheme


INITIALISATIONS: dict[str, Callable[[ImageShape, torch.Generator], Tensor]] = {
    "uniform": _uniform,
    "gauss": _gauss,
    "pattern-1/4": _pattern(2),
    "pattern-1/16": _pattern(4),
    "pattern-1/64": _pattern(8),
    "dark": _constant(0.0),
    "light": _constant(1.0),
    "R": _channel(0),
    "G": _channel(1),
    "B": _channel(2),
}


def initial_images(scheme: str, keys: list[tuple[int | str, ...]], shape: ImageShape) -> Tensor:
    """Dummy images (R, *shape), one random stream per key.

    Raises:
        UsageError: the scheme is unknown or does not fit the images.
    """
    if scheme not in INITIALISATIONS:
        raise UsageError(f"unknown initialisation {scheme!r}; known: {', '.join(INITIALISATIONS)}")
    return torch.stack([INITIALISATIONS[scheme](shape, generator("init", *key)) for key in keys])
