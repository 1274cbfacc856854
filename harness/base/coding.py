"""Coarser forms of numbers on their way: fewer bits, and signs. Each is a function of the numbers alone.

Sources: IEEE 754 (``float16``), bfloat16; eight-bit integers by the largest magnitude of a tensor; NF4 of Dettmers et
al. 2023 ("QLoRA") and the FP4 beside it in bitsandbytes, by the largest of each 64 numbers; ``blockwise8`` of Dettmers
et al. 2022 ("8-bit Optimizers via Block-wise Quantization"), section 2.1; AdaQuant (arXiv:2208.05174) as in nvflare
2.9.0; signs of Bernstein et al. 2018 (zero counts as positive, as in released code) and, scaled by the mean magnitude
of a tensor, of Karimireddy et al. 2019.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.base.randomness import generator
from harness.base.vectors import Grouping, Layout, group_sums, spread

Kind = Literal[
    "float16", "bfloat16", "int8", "normfloat4", "float4", "blockwise8", "adaquant", "sign", "mean_sign", "length",
    "adapters", "largest", "chance",
]  # fmt: skip
_BLOCK, _LARGE_BLOCK = 64, 4096
_NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
_TWELFTHS = (0.0625, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
_FP4 = (*(-one / 12 for one in reversed(_TWELFTHS)), 0.0, *(one / 12 for one in _TWELFTHS))
# Of each power of ten twice as many as of the one below it, in the middle of equal parts of 0.1 to 1.
_DYNAMIC = tuple(
    10.0 ** (power - 6) * (0.1 + 0.9 * (part + 0.5) / 2**power) for power in range(7) for part in range(2**power)
)
_DYNAMIC8 = (*sorted(-one for one in _DYNAMIC), 0.0, *sorted(_DYNAMIC), 1.0)
# AdaQuant weighs the bits of a number (32 before) against the error that fewer leave.
_ADAQUANT = 32 * math.log(4) / 0.01
_TINY = 1e-30
# No chance is taken for less: a number that rounding moved to the end of its step is possible still.
_RARE = 1e-2


@dataclass(frozen=True)
class Coding:
    """Coding in which numbers (..., P) are written, tensor by tensor.

    Attributes:
        kind: see above. unit: by which numbers are multiplied before, and divided after; not 0.
        bits: of integers (``int8``), 2 to 16.
        feedback: whether what is lost is kept, and added to the numbers of the next round before these are written.
    """

    kind: Kind
    unit: float = 1.0
    bits: int = 8
    feedback: bool = False

    def of(self, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return what is left of numbers (..., P), in tensors of these sizes."""
        made = [self._coded(part * self.unit) for part in values.split(sizes, dim=-1)]
        return torch.cat(made, dim=-1) / self.unit

    def _coded(self, part: Tensor) -> Tensor:
        return _integers(part, self.bits) if self.kind == "int8" else _CODED[self.kind](part)

    def bounds(self, read: Tensor, layout: Layout) -> tuple[Tensor, Tensor] | None:
        """Between which numbers (R, P) those lay that were written as ``read`` (R, P); None where it tells no bounds.

        The two are equal where the number is known exactly; one is infinite where only a sign is left.
        """
        if self.kind not in _BETWEEN and self.kind != "int8":
            return None
        between = _BETWEEN.get(self.kind) or (lambda part: _between_integers(part, self.bits))
        parts = [between(part * self.unit) for part in read.split(layout.sizes, dim=-1)]
        low, high = (torch.cat(one, dim=-1) / self.unit for one in zip(*parts, strict=True))
        return (high, low) if self.unit < 0 else (low, high)

    def smooth(self, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return what :meth:`of` returns without steps, so that it has a derivative: of signs a sigmoid, else the
        numbers themselves."""
        if not self.signs:
            return values
        parts = []
        for part in values.split(sizes, dim=-1):
            root = part.detach().square().mean(-1, keepdim=True).sqrt().clamp_min(_TINY)
            parts.append(self.size(part) * torch.tanh(part / root))
        return torch.cat(parts, dim=-1)

    def at(self, unit: float, shapes: tuple[tuple[int, ...], ...]) -> Self:
        """Return the coding for numbers in another unit, in tensors of these shapes."""
        return replace(self, unit=unit)

    def explains(self, values: Tensor, target: Tensor, sizes: tuple[int, ...], lead: bool) -> Tensor:
        """Return what of a target (..., P) is left of values (..., P); ``lead``: without steps. Of lengths alone, all
        else."""
        if self.kind != "length":
            return (self.smooth if lead else self.of)(values, sizes)
        own, read = ((group_sums(one.square(), sizes) + _TINY).sqrt() for one in (values, target))
        return target * spread(own / read, sizes)

    @property
    def linear(self) -> bool:
        """Return whether it is the same of a sum as the sum of what it is of each part."""
        return False

    @property
    def signs(self) -> bool:
        """Return whether nothing but signs is left."""
        return self.kind in ("sign", "mean_sign")

    @property
    def block(self) -> int | None:
        """Return how many numbers are written by the largest of them; None where those of a tensor are."""
        return _BLOCKS[self.kind][0] if self.kind in _BLOCKS else None

    @property
    def levels(self) -> int | None:
        """Return how many different numbers a block holds at most; None of what is written in no blocks."""
        return len(_BLOCKS[self.kind][1]) if self.kind in _BLOCKS else None

    def size(self, part: Tensor) -> Tensor:
        """The magnitude (..., 1) that numbers (..., n) of a tensor have where signs alone are left."""
        if self.kind == "sign":
            return torch.full_like(part[..., :1], 1 / abs(self.unit))
        return part.abs().mean(-1, keepdim=True)

    def words(self) -> str:
        """Return what it does, in half a sentence."""
        if self.kind == "int8":
            return f"rounded to {2**self.bits - 1} steps by the largest magnitude of each tensor"
        return _WORDS[self.kind]


@dataclass(frozen=True)
class Largest(Coding):
    """The numbers of largest magnitude of the whole vector, or of each tensor; zeros in the place of all others."""

    kind: Kind = "largest"
    grouping: Grouping = "whole"

    def explains(self, values: Tensor, target: Tensor, sizes: tuple[int, ...], lead: bool) -> Tensor:
        return values  # which zeros are none is known by :attr:`Observation.sparse`

    def bounds(self, read: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        least = [
            part.abs().where(part != 0, torch.inf).amin(-1, keepdim=True).expand_as(part)
            for part in read.split(layout.groups(self.grouping), dim=-1)
        ]
        most = torch.cat(least, dim=-1)
        return torch.where(read == 0, -most, read), torch.where(read == 0, most, read)


@dataclass(frozen=True)
class ByChance(Coding):
    """One of the two multiples beside a number, of ``steps`` up to its tensor's largest magnitude, which is sent as it
    is: without bias, and zeros stay zeros (QSGD of Alistarh et al. 2017, as in released code)."""

    kind: Kind = "chance"
    steps: int = 15

    def explains(self, values: Tensor, target: Tensor, sizes: tuple[int, ...], lead: bool) -> Tensor:
        low, high = self._within(target, sizes)
        return target + (values - values.clamp(low, high))  # all between the bounds is alike

    def unlikely(self, values: Tensor, read: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """-log (..., P) of the chance that numbers within their bounds are written as ``read``."""
        away = (values - read).abs() / self.largest(read, sizes).clamp_min(_TINY) * self.steps
        return -(1 - away).clamp_min(_RARE).log()

    def bounds(self, read: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        return self._within(read, layout.sizes)

    @staticmethod
    def largest(read: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """The largest magnitude of each tensor, for each of its numbers (..., P)."""
        most = [part.abs().amax(-1, keepdim=True).expand_as(part) for part in read.split(sizes, dim=-1)]
        return torch.cat(most, dim=-1)

    def _within(self, read: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """A step on either side; what is no zero keeps its sign."""
        largest = self.largest(read, sizes)
        step = largest / self.steps
        low, high = (read - step).maximum(-largest), (read + step).minimum(largest)
        return low.where(read <= 0, low.clamp_min(0)), high.where(read >= 0, high.clamp_max(0))


@dataclass(frozen=True)
class Adapted(Coding):
    """Coding that leaves scale^2 W A^T A of the gradient of matrices W where W + scale B A is trained, B alone; else
    zeros.

    Attributes:
        rank: rows of A, which everybody knows. scale: alpha / rank. shapes: of the tensors.
    """

    rank: int = 1
    scale: float = 1.0
    shapes: tuple[tuple[int, ...], ...] = ()

    def at(self, unit: float, shapes: tuple[tuple[int, ...], ...]) -> Self:
        return replace(self, unit=unit, shapes=shapes)

    def of(self, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        made = []
        for place, (part, shape) in enumerate(zip(values.split(sizes, dim=-1), self.shapes, strict=True)):
            if len(shape) < 2:
                made.append(torch.zeros_like(part))
                continue
            down = _first_adapter(place, math.prod(shape[1:]), self.rank).to(part)
            matrices = part.unflatten(-1, (shape[0], -1))
            made.append((self.scale**2 * matrices @ down.T @ down).flatten(-2))
        return torch.cat(made, dim=-1)

    def smooth(self, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        return self.of(values, sizes)

    @property
    def linear(self) -> bool:
        return True


@lru_cache(maxsize=256)
def _first_adapter(place: int, width: int, rank: int) -> Tensor:
    """A (rank, width) of a tensor, uniform as PEFT draws it."""
    drawn = torch.rand(rank, width, generator=generator("adapters", place, width, rank), dtype=torch.float64)
    return (2 * drawn - 1) / math.sqrt(width)


def _integers(part: Tensor, bits: int) -> Tensor:
    step = part.abs().amax(-1, keepdim=True).clamp_min(_TINY) / (2 ** (bits - 1) - 1)
    return (part / step).round() * step


def _between_integers(part: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Half a step on either side; the largest magnitude is exact, and nothing lies beyond it."""
    most = part.abs().amax(-1, keepdim=True)
    half = most / (2**bits - 2)
    return (part - half).maximum(-most), (part + half).minimum(most)


def _between_floats(digits: int, least: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Half the distance of neighbouring floats with so many binary digits; ``least``: exponent of the smallest one."""

    def between(part: Tensor) -> tuple[Tensor, Tensor]:
        half = torch.ldexp(torch.full_like(part, 0.5), (torch.frexp(part).exponent - digits).clamp_min(least))
        return part - half, part + half

    return between


def _between_levels(block: int, values: tuple[float, ...]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The borders beside a level. The largest magnitude of a block is where its outermost level on that side is."""

    def between(part: Tensor) -> tuple[Tensor, Tensor]:
        length = part.shape[-1]
        blocks = pad(part, (0, -length % block)).unflatten(-1, (-1, block))
        levels = torch.tensor(values, dtype=part.dtype, device=part.device)
        largest = (blocks.amax(-1, keepdim=True) / levels[-1]).maximum(blocks.amin(-1, keepdim=True) / levels[0])
        largest = largest.clamp_min(_TINY)
        borders = torch.cat([-torch.ones_like(levels[:1]), (levels[1:] + levels[:-1]) / 2, levels[-1:]])
        place = torch.bucketize(blocks / largest, borders[1:-1])
        low, high = borders[place] * largest, borders[place + 1] * largest
        return low.flatten(-2)[..., :length], high.flatten(-2)[..., :length]

    return between


def _between_ranges(part: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of numbers in AdaQuant, whose smallest and largest number are exact. Of a range without steps
    only the end is known."""
    least, most = part.amin(-1, keepdim=True), part.amax(-1, keepdim=True)
    bits = ((most - least) * _ADAQUANT).sqrt().clamp(1, 2.0**16).ceil().log2().ceil()
    half = (most - least) / (2.0**bits - 1).clamp_min(_TINY) / 2
    flat = bits == 0
    return (part - half).maximum(least), torch.where(flat, least + 1 / _ADAQUANT, (part + half).minimum(most))


def _between_signs(part: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of numbers by their signs, from zero on; a zero, which only scaled signs leave, is exact."""
    end, zero = torch.full_like(part, math.inf), torch.zeros_like(part)
    return torch.where(part < 0, -end, zero), torch.where(part > 0, end, zero)


def _in_blocks(block: int, values: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """Rounds to the nearest of values times the largest magnitude of each so many numbers."""

    def of(part: Tensor) -> Tensor:
        length = part.shape[-1]
        blocks = pad(part, (0, -length % block)).unflatten(-1, (-1, block))
        largest = blocks.abs().amax(-1, keepdim=True).clamp_min(_TINY)
        levels = torch.tensor(values, dtype=part.dtype, device=part.device)
        borders = (levels[1:] + levels[:-1]) / 2
        return (levels[torch.bucketize(blocks / largest, borders)] * largest).flatten(-2)[..., :length]

    return of


def _adaquant(part: Tensor) -> Tensor:
    """Steps from the smallest number on, as many as the range is wide; none at all below a range of 2.3e-4.

    There the package divides by zero, and the server gets what is no number; here it gets the smallest one.
    """
    least = part.amin(-1, keepdim=True)
    width = part.amax(-1, keepdim=True) - least
    bits = (width * _ADAQUANT).sqrt().clamp(1, 2.0**16).ceil().log2().ceil()
    step = width / (2.0**bits - 1).clamp_min(_TINY)
    return ((part - least) / step.clamp_min(_TINY)).round() * step.where(bits > 0, 0.0) + least


_BLOCKS: dict[Kind, tuple[int, tuple[float, ...]]] = {
    "normfloat4": (_BLOCK, _NF4),
    "float4": (_BLOCK, _FP4),
    "blockwise8": (_LARGE_BLOCK, _DYNAMIC8),
}
_HALF = 65504.0  # the largest number of half precision
_CODED: dict[Kind, Callable[[Tensor], Tensor]] = {
    "float16": lambda part: part.clamp(-_HALF, _HALF).half().to(part),
    "bfloat16": lambda part: part.bfloat16().to(part),
    **{kind: _in_blocks(*one) for kind, one in _BLOCKS.items()},
    "adaquant": _adaquant,
    "sign": lambda part: torch.where(part >= 0, 1.0, -1.0).to(part),
    "mean_sign": lambda part: part.abs().mean(-1, keepdim=True) * part.sign(),
    "length": lambda part: part,
    "adapters": lambda part: part,
    "largest": lambda part: part,
    "chance": lambda part: part,  # in the mean
}
_BETWEEN: dict[Kind, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "float16": _between_floats(11, -24),
    "bfloat16": _between_floats(8, -133),
    **{kind: _between_levels(*one) for kind, one in _BLOCKS.items()},
    "adaquant": _between_ranges,
    "sign": _between_signs,
    "mean_sign": _between_signs,
}
_WORDS: dict[Kind, str] = {
    "float16": "rounded to half precision",
    "bfloat16": "rounded to bfloat16",
    "normfloat4": f"rounded to the 16 levels of NF4 by the largest magnitude of each {_BLOCK} numbers",
    "float4": f"rounded to 15 levels of four bits by the largest magnitude of each {_BLOCK} numbers",
    "blockwise8": f"rounded to 256 levels by the largest magnitude of each {_LARGE_BLOCK} numbers",
    "adaquant": "rounded to steps of each tensor, more of them the wider its range is",
    "sign": "sent as signs, of size 1",
    "mean_sign": "sent as signs, of the mean magnitude of each tensor",
    "length": "replaced by others, as long in each tensor",
    "adapters": "sent as those of adapters alone",
    "largest": "left out but for the largest",
    "chance": "rounded by chance to steps of the largest magnitude of each tensor",
}


def normal_signs(mean: Tensor, variance: Tensor, size: Tensor, zero: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return three parts for the signs of independent normal numbers (P,), of a size each: the gain of the best line,
    the mean, and the mean square.

    ``zero``: the sign of a number that is 0 for certain.
    """
    width = variance.sqrt()
    ratio = torch.where(width > _TINY, mean / width.clamp_min(_TINY), zero * math.inf)
    gain = size * math.sqrt(2 / math.pi) * (-ratio.square() / 2).exp() / width.clamp_min(_TINY)
    return gain, size * torch.erf(ratio / math.sqrt(2)), size.square()
