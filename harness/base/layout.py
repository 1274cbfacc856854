"""Names the slices of a flat parameter vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

Grouping = Literal["layer", "whole"]


@dataclass(frozen=True)
class Layout:
    """Order, names and shapes of a model's parameter tensors inside one flat vector of P numbers."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of a module's parameters in ``named_parameters`` order."""
        named = [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]
        return cls(tuple(name for name, _ in named), tuple(shape for _, shape in named))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each tensor."""
        return tuple(torch.Size(shape).numel() for shape in self.shapes)

    @property
    def total(self) -> int:
        """P, the number of coordinates of the whole vector."""
        return sum(self.sizes)

    def groups(self, grouping: Grouping) -> tuple[int, ...]:
        """Sizes of the clipping groups: one per tensor (``layer``) or one for the whole vector (``whole``)."""
        return self.sizes if grouping == "layer" else (self.total,)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Named tensors (..., *shape) viewed from flat vectors (..., P)."""
        pieces = flat.split(self.sizes, dim=-1)
        return {
            name: piece.reshape((*flat.shape[:-1], *shape))
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Flat vector (P,) of named tensors of exactly this layout."""
        return torch.cat([named[name].reshape(-1) for name in self.names])


def group_sums(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sums of consecutive groups of the last axis: (..., P) -> (..., M)."""
    return torch.stack([piece.sum(-1) for piece in values.split(sizes, dim=-1)], dim=-1)


def spread(factors: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Repeats one factor per group over the group's coordinates: (..., M) -> (..., P)."""
    counts = torch.tensor(sizes, device=factors.device)
    return factors.repeat_interleave(counts, dim=-1, output_size=sum(sizes))
