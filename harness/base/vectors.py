"""Flat vectors: the layout that names the slices of tensors, norms, clipping, and inner products."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn

# Names the slices of a flat parameter vector.

Grouping = Literal["layer", "whole"]
#: How weights are read that are complex.
REAL = "let the network keep such a weight as two real ones, as torch.view_as_real makes them"


@dataclass(frozen=True)
class Layout:
    """Order, names and shapes of a model's parameter tensors inside one flat vector of P numbers.

    ``rounds``: how many rounds of a training lie in it one after another, the first under the names of its tensors. A
    clip, or a noise level, of the whole vector is then one of each round.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    rounds: int = 1

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

    @property
    def scalars(self) -> tuple[int, ...]:
        """Places of the tensors without a dimension (0-d arrays) in the flat vector."""
        ends = accumulate(self.sizes)
        return tuple(end - 1 for end, shape in zip(ends, self.shapes, strict=True) if not shape)

    def groups(self, grouping: Grouping) -> tuple[int, ...]:
        """Sizes of the clipping groups: one per tensor (``layer``) or one for the whole vector (``whole``)."""
        return self.sizes if grouping == "layer" else (self.total // self.rounds,) * self.rounds

    def over(self, rounds: int) -> "Layout":
        """The layout of so many rounds, one after another, of a network with this one."""
        later = (f"{name}@{number + 1}" for number in range(1, rounds) for name in self.names)
        return Layout((*self.names, *later), self.shapes * rounds, rounds)

    def mean_of(self, flat: Tensor, name: str) -> Tensor:
        """A named tensor (..., *shape) of flat vectors (..., P), as it is on average over the rounds."""
        first, each = self.names.index(name), len(self.names) // self.rounds
        parts = flat.split(self.sizes, dim=-1)[first::each]
        mean = parts[0] if self.rounds == 1 else torch.stack(parts).mean(0)
        return mean.reshape(*flat.shape[:-1], *self.shapes[first])

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


def filled(parts: Iterable[Tensor], rows: int) -> Tensor:
    """Parts (r, ...) of so many rows in all, one after another: (rows, ...). Large ones fill the memory but once."""
    whole, end = None, 0
    for part in parts:
        if len(part) == rows:
            return part
        whole = part.new_empty(rows, *part.shape[1:]) if whole is None else whole
        whole[end : end + len(part)] = part
        end += len(part)
    assert whole is not None and end == rows
    return whole


def group_sums(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sums of consecutive groups of the last axis: (..., P) -> (..., M)."""
    return torch.stack([piece.sum(-1) for piece in values.split(sizes, dim=-1)], dim=-1)


def spread(factors: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Repeats one factor per group over the group's coordinates: (..., M) -> (..., P)."""
    if not factors.requires_grad:  # five times faster; its derivative would be summed in another order
        parts = zip(factors.split(1, dim=-1), sizes, strict=True)
        return torch.cat([factor.expand(*factor.shape[:-1], size) for factor, size in parts], dim=-1)
    return factors.repeat_interleave(_on(factors.device, sizes), dim=-1, output_size=sum(sizes))


@lru_cache(maxsize=64)
def _on(device: torch.device, sizes: tuple[int, ...]) -> Tensor:
    """Sizes of groups on a device, sent there once."""
    return torch.tensor(sizes, device=device)


# Clipping of flat vectors, per parameter tensor or as a whole (docs/defenses.md).


def noise_deviation(sigma: float, bound: float) -> float:
    """sigma * bound; without noise the bound may be infinite.

    Raises:
        ValueError: there is noise but no finite bound to scale it by.
    """
    if sigma and math.isinf(bound):
        raise ValueError("an infinite clip leaves the noise without a scale; use a finite clip or sigma=0")
    return sigma * bound if sigma else 0.0


def clip_factors(norms: Tensor, bound: float) -> Tensor:
    """Factors min(1, bound / norm) in (0, 1]; a zero norm gives 1."""
    if math.isinf(bound):
        return torch.ones_like(norms)
    return (bound / norms.clamp_min(1e-30)).clamp(max=1.0)


def example_factors(norms: Tensor, bound: float, grouping: str) -> Tensor:
    """Per-tensor clip factors (N, B, M) from per-tensor norms (N, B, M) of per-example gradients."""
    if grouping == "whole":
        whole = norms.square().sum(-1, keepdim=True).sqrt()
        return clip_factors(whole, bound).expand_as(norms)
    return clip_factors(norms, bound)


def clip(vectors: Tensor, bound: float, groups: tuple[int, ...]) -> Tensor:
    """Vectors (..., P) with the L2 norm of every group of coordinates at most ``bound``."""
    norms = group_sums(vectors.square(), groups).sqrt()
    return vectors * spread(clip_factors(norms, bound), groups)


# Inner products of long vectors: one pass, without a tensor of products.

LONG = 2**18
"""Coordinates from which a vector leaves the caches, and passes over it are what its arithmetic costs."""

_BLOCK = 2**16  # few enough for single precision to add up, and for a core's own cache
_LAUNCHED = 2**22  # on a GPU, where every piece costs a launch
_SHARED = 2**20


def blocks(*vectors: Tensor, added_up: bool = True) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of vectors of one length, side by side: what is done to one piece finds it in the cache.

    Longer ones, for the cache that cores share, where nothing is ``added_up``.
    """
    on_cpu = _BLOCK if added_up else _SHARED
    size = on_cpu if vectors[0].device.type == "cpu" else _LAUNCHED
    return zip(*(vector.split(size) for vector in vectors), strict=True)


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products (R,) of rows (R, n)."""
    rows = zip(left.unbind(), right.unbind(), strict=True)
    return torch.stack([torch.stack([torch.dot(*pair) for pair in blocks(*row)]).sum() for row in rows])


def group_products(left: Tensor, right: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Inner products (R, M) within consecutive groups of coordinates of (R, P): of both, and of each with itself."""
    groups = zip(left.split(sizes, 1), right.split(sizes, 1), strict=True)
    found = [[_products(*row) for row in zip(*group, strict=True)] for group in groups]
    both, own, others = torch.stack([torch.stack(rows) for rows in found], 1).unbind(-1)
    return both, own, others


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Left with right, left with left, right with right (3,)."""
    made = [torch.dot(*pair) for a, b in blocks(left, right) for pair in ((a, b), (a, a), (b, b))]
    return torch.stack(made).reshape(-1, 3).sum(0)
