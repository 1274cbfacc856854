"""Coarser forms of numbers on their way: fewer bits, and signs. Each is a function of the numbers alone.

Sources: IEEE 754 (``float16``), bfloat16; eight-bit integers by the largest magnitude of a tensor; NF4 of Dettmers et
al. 2023 ("QLoRA"), by the largest of each 64 numbers; signs of Bernstein et al. 2018 (zero counts as positive, as in
released code) and, scaled by the mean magnitude of a tensor, of Karimireddy et al. 2019.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

Kind = Literal["float16", "bfloat16", "int8", "normfloat4", "sign", "mean_sign"]
_BLOCK = 64
_LEVELS = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
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


def _int8(part: Tensor) -> Tensor:
    step = part.abs().amax(-1, keepdim=True).clamp_min(_TINY) / 127
    return (part / step).round() * step


def _normfloat4(part: Tensor) -> Tensor:
    length = part.shape[-1]
    blocks = pad(part, (0, -length % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(_TINY)
    levels = torch.tensor(_LEVELS, dtype=part.dtype, device=part.device)
    borders = (levels[1:] + levels[:-1]) / 2
    return (levels[torch.bucketize(blocks / largest, borders)] * largest).flatten(-2)[..., :length]


def _sign(part: Tensor) -> Tensor:
    return torch.where(part >= 0, 1.0, -1.0).to(part)


_HALF = 65504.0  # the largest number of half precision
_CODED: dict[Kind, Callable[[Tensor], Tensor]] = {
    "float16": lambda part: part.clamp(-_HALF, _HALF).half().to(part),
    "bfloat16": lambda part: part.bfloat16().to(part),
    "int8": _int8,
    "normfloat4": _normfloat4,
    "sign": _sign,
    "mean_sign": lambda part: part.abs().mean(-1, keepdim=True) * part.sign(),
}
_WORDS: dict[Kind, str] = {
    "float16": "rounded to half precision",
    "bfloat16": "rounded to bfloat16",
    "int8": "rounded to 255 steps by the largest magnitude of each tensor",
    "normfloat4": f"rounded to the 16 levels of NF4 by the largest magnitude of each {_BLOCK} numbers",
    "sign": "sent as signs, of size 1",
    "mean_sign": "sent as signs, of the mean magnitude of each tensor",
}


def normal_signs(mean: Tensor, variance: Tensor, size: Tensor, zero: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of the signs of independent normal numbers (P,), of a size each: the gain of the best line, mean, mean square.

    ``zero``: the sign of a number that is 0 for certain.
    """
    width = variance.sqrt()
    ratio = torch.where(width > _TINY, mean / width.clamp_min(_TINY), zero * math.inf)
    gain = size * math.sqrt(2 / math.pi) * (-ratio.square() / 2).exp() / width.clamp_min(_TINY)
    return gain, size * torch.erf(ratio / math.sqrt(2)), size.square()
