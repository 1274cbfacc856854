"""A network's weights beside their gradient and a direction, all three as slices of flat vectors."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.vectors.layout import Layout


@dataclass
class Weight:
    """One tensor of weights w; ``gradient`` is written by the second pass, ``direction`` w' is read by the others."""

    value: Tensor
    gradient: Tensor
    direction: Tensor = field(init=False)
    _parts: list[tuple[slice, "Weight"]] = field(default_factory=list)

    def rows(self, first: int, last: int) -> "Weight":
        """The rows from the first to before the last, as weights of their own."""
        rows = slice(first, last)
        part = Weight(self.value[rows], self.gradient[rows])
        self._parts.append((rows, part))
        return part

    def move(self, direction: Tensor) -> None:
        """Sets the direction, also of parts."""
        self.direction = direction
        for rows, part in self._parts:
            part.move(direction[rows])


class Weights:
    """All weights (P,) of a network, by the names that they have in it."""

    def __init__(self, flat: Tensor, layout: Layout) -> None:
        self._layout = layout
        self._gradient = torch.empty_like(flat)
        values, gradients = layout.split(flat), layout.split(self._gradient)
        self._named = {name: Weight(value, gradients[name]) for name, value in values.items()}

    def __getitem__(self, name: str) -> Weight:
        return self._named[name]

    def whole_gradient(self) -> Tensor:
        """The gradient (P,), as a tensor that knows nothing of these weights, so that both may refer to each other."""
        return self._gradient.detach()

    def move(self, direction: Tensor) -> None:
        """Sets the direction (P,)."""
        for name, part in self._layout.split(direction).items():
            self._named[name].move(part)
