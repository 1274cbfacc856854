"""Common part of attacks by bins of brightness: cutoffs at public quantiles, and images from neighbouring bins."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.models import RowModel
from harness.observation import Observation

WEIGHT, BIAS = "front.linear.weight", "front.linear.bias"
_FAINT = 1e-5
"""A bin whose gradient is that much smaller than the largest holds rounding errors of the others, and no image."""

Bins = Annotated[int, Field(ge=2, le=2**16)]
Gain = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


def require_bins(attack: str, bins: int, images: int) -> None:
    """Raises:
    UsageError: more images are to be told apart than there are bins.
    """
    if bins < images:
        raise UsageError(
            f"attack {attack!r} tells at most {bins} images apart, one in a bin, and {images} are behind one "
            f"observation; use --attack-arg {attack}.bins={images * 8}, or a smaller --batch-size"
        )


def brightness(model: RowModel) -> Tensor:
    """Positive weights (D,) of pixels, fixed and no two alike, that add up to one.

    Equal ones would do for images; rows of tables whose categories are one-hot would all be equally bright.
    """
    drawn = torch.rand(math.prod(model.image_shape), generator=generator("brightness")) + 0.5
    return drawn / drawn.sum()


def write_bins(model: RowModel, sent: Tensor, public: Tensor, gain: float) -> dict[str, Tensor]:
    """Writes the units of an imprint module into weights (N, P), and returns all tensors (N, ...) by name.

    Args:
        model: the network behind it.
        sent: changed in place.
        public: images (n, C, H, W) whose brightness the cutoffs divide equally.
        gain: the module's; units are so much smaller.
    """
    named, bright = model.layout.split(sent), brightness(model).to(sent)
    cutoffs = quantiles(public.flatten(1) @ bright, named[BIAS].shape[-1])
    copies = named[WEIGHT].shape[-1] // len(bright)
    named[WEIGHT].copy_(bright.repeat(copies) / gain)
    named[BIAS].copy_(-cutoffs / gain)
    return named


def read_cutoffs(named: dict[str, Tensor], bright: Tensor) -> Tensor:
    """The cutoffs (K,) that weights say which were written so, those of one row by name."""
    return -named[BIAS] / named[WEIGHT][:, 0] * bright[0]


def quantiles(values: Tensor, bins: int) -> Tensor:
    """Cutoffs (K,) below K equal shares of public values (n,) above 0; the first is 0."""
    cutoffs = values.double().quantile(torch.arange(bins, device=values.device).double() / bins)
    cutoffs[0] = 0.0
    return cutoffs.to(values)


@dataclass(frozen=True)
class Differences:
    """Differences that the images between neighbouring cutoffs left: of weights (K, D), of biases (K,), and those
    cutoffs (K,)."""

    weight: Tensor
    bias: Tensor
    cutoffs: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, cutoffs: Tensor) -> "Differences":
        """Return the differences from gradients of the units' weights (K, D) and biases (K,); above the last cutoff
        there is no other."""
        above = torch.zeros_like(weight[:1])
        return cls(-weight.diff(dim=0, append=above), -bias.diff(append=bias.new_zeros(1)), cutoffs)

    def images(self, count: int, bright: Tensor, by_bias: bool, blank: Tensor) -> Tensor:
        """Those of the ``count`` bins (count, D) that hold most; ``blank`` (D,) where a bin holds nothing.

        Args:
            count: of images.
            bright: (D,), weights of brightness.
            by_bias: the bias gradient tells an image's share of the gradient; else its bin tells how bright it is.
            blank: (D,).
        """
        size = torch.linalg.vector_norm(self.weight, dim=1)
        held, bins = size.topk(count)
        found = self.weight[bins]
        upper = torch.cat([self.cutoffs[1:], self.cutoffs[-1:]])
        middle = (self.cutoffs + upper)[bins] / 2
        share = self.bias[bins] if by_bias else (found * bright).sum(1) / middle
        there = (held > _FAINT * held[0]) & (share != 0)
        return torch.where(there[:, None], found / share[:, None], blank)


def tells_shares(observation: Observation) -> bool:
    """Return whether bias gradients are as large beside weight gradients as the loss made them, and free of noise."""
    return observation.clipping is None and observation.noise is None and not observation.sparse


def blank_of(observation: Observation) -> Tensor:
    """The mean of public images (D,), a half where nothing is public."""
    prior, width = observation.prior, math.prod(observation.model.image_shape)
    return observation.target.new_full((width,), 0.5) if prior is None else prior.means.mean(0).to(observation.target)
