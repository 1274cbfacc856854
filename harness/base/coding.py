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
from harness.base.vectors import group_sums, spread

Kind = Literal[
    "float16", "bfloat16", "int8", "normfloat4", "float4", "blockwise8", "adaquant", "sign", "mean_sign", "length",
    "adapters",
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


@dataclass(frozen=True)
class Coding:
    """How numbers (..., P) are written, tensor by tensor.

    Attributes:
        kind: see above. unit: by which numbers are multiplied before, and divided after; not 0.
    """

    kind: Kind
    unit: float = 1.0

    def of(self, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """What is left of numbers (..., P), in tensors of these sizes."""
        made = [_CODED[self.kind](part * self.unit) for part in values.split(sizes, dim=-1)]
        return torch.cat(made, dim=-1) / self.unit

    def smooth(self, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """The same without steps, so that it has a derivative: of signs a sigmoid, else the numbers themselves."""
        if not self.signs:
            return values
        parts = []
        for part in values.split(sizes, dim=-1):
            root = part.detach().square().mean(-1, keepdim=True).sqrt().clamp_min(_TINY)
            parts.append(self.size(part) * torch.tanh(part / root))
        return torch.cat(parts, dim=-1)

    def at(self, unit: float, shapes: tuple[tuple[int, ...], ...]) -> Self:
        """The same of numbers in another unit, in tensors of these shapes."""
        return replace(self, unit=unit)

    def explains(self, values: Tensor, target: Tensor, sizes: tuple[int, ...], lead: bool) -> Tensor:
        """What of a target (..., P) is left of values (..., P); ``lead``: without steps. Of lengths alone, all else."""
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

    def size(self, part: Tensor) -> Tensor:
        """The magnitude (..., 1) that numbers (..., n) of a tensor have where signs alone are left."""
        if self.kind == "sign":
            return torch.full_like(part[..., :1], 1 / abs(self.unit))
        return part.abs().mean(-1, keepdim=True)

    def words(self) -> str:
        """What it does, in half a sentence."""
        return _WORDS[self.kind]


@dataclass(frozen=True)
class Adapted(Coding):
    """What is left of the gradient of matrices W where W + scale B A is trained, B alone: scale^2 W A^T A; else zeros.

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


def _int8(part: Tensor) -> Tensor:
    step = part.abs().amax(-1, keepdim=True).clamp_min(_TINY) / 127
    return (part / step).round() * step


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


def _sign(part: Tensor) -> Tensor:
    return torch.where(part >= 0, 1.0, -1.0).to(part)


_HALF = 65504.0  # the largest number of half precision
_CODED: dict[Kind, Callable[[Tensor], Tensor]] = {
    "float16": lambda part: part.clamp(-_HALF, _HALF).half().to(part),
    "bfloat16": lambda part: part.bfloat16().to(part),
    "int8": _int8,
    "normfloat4": _in_blocks(_BLOCK, _NF4),
    "float4": _in_blocks(_BLOCK, _FP4),
    "blockwise8": _in_blocks(_LARGE_BLOCK, _DYNAMIC8),
    "adaquant": _adaquant,
    "sign": _sign,
    "mean_sign": lambda part: part.abs().mean(-1, keepdim=True) * part.sign(),
    "length": lambda part: part,
    "adapters": lambda part: part,
}
_WORDS: dict[Kind, str] = {
    "float16": "rounded to half precision",
    "bfloat16": "rounded to bfloat16",
    "int8": "rounded to 255 steps by the largest magnitude of each tensor",
    "normfloat4": f"rounded to the 16 levels of NF4 by the largest magnitude of each {_BLOCK} numbers",
    "float4": f"rounded to 15 levels of four bits by the largest magnitude of each {_BLOCK} numbers",
    "blockwise8": f"rounded to 256 levels by the largest magnitude of each {_LARGE_BLOCK} numbers",
    "adaquant": "rounded to steps of each tensor, more of them the wider its range is",
    "sign": "sent as signs, of size 1",
    "mean_sign": "sent as signs, of the mean magnitude of each tensor",
    "length": "replaced by others, as long in each tensor",
    "adapters": "sent as those of adapters alone",
}


def normal_signs(mean: Tensor, variance: Tensor, size: Tensor, zero: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of the signs of independent normal numbers (P,), of a size each: the gain of the best line, mean, mean square.

    ``zero``: the sign of a number that is 0 for certain.
    """
    width = variance.sqrt()
    ratio = torch.where(width > _TINY, mean / width.clamp_min(_TINY), zero * math.inf)
    gain = size * math.sqrt(2 / math.pi) * (-ratio.square() / 2).exp() / width.clamp_min(_TINY)
    return gain, size * torch.erf(ratio / math.sqrt(2)), size.square()
