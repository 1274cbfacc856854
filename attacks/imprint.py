"""Imprint: a layer of bins put before the network; each bin that one image alone falls into gives that image away.

Unit k of the layer is active for images whose weighted brightness lies above the cutoff c_k, and every active unit has
the same derivative. So the gradients of neighbouring units differ by those of the images between their cutoffs: with
one image there, (dW_k - dW_{k+1}) / (db_k - db_{k+1}) is that image. Cutoffs are quantiles of public images.
Source: Fowl et al., "Robbing the Fed" (ICLR 2022), section 4. Where the defense clips weights and biases apart, or
hides them in noise, the quotient says nothing; there the bin itself says how bright the image is, which is ours.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.attack import ATTACKS, validated_attack
from harness.attacks.closed_form import ClosedForm
from harness.errors import UsageError
from harness.models import RowModel
from harness.models.imprint import Imprint
from harness.observation import Observation, Tier
from harness.tampering import Tamper
from harness.vectors.randomness import generator

_FAINT = 1e-5
"""A bin whose gradient is that much smaller than the largest holds rounding errors of the others, and no image."""
_WEIGHT, _BIAS = "front.linear.weight", "front.linear.bias"

Bins = Annotated[int, Field(ge=2, le=2**16)]
Gain = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


@ATTACKS.register("imprint", "robbing_the_fed")
@validated_attack
class ImprintAttack(ClosedForm):
    """``bins`` of equal public mass; ``gain``: how much steeper gradients are, at no difference to the network."""

    bins: Bins = 512
    gain: Gain = 1.0
    tier: ClassVar[Tier] = "tampering"

    def tamper(self, clients: int, examples: int) -> Tamper:
        require_bins("imprint", self.bins, clients * examples)
        front = partial(Imprint, bins=self.bins, gain=self.gain)
        return Tamper(partial(_send, self.gain), front, f"{self.bins} units over the whole image")

    def solved(self, observation: Observation) -> Tensor:
        return torch.stack([_images(observation, row) for row in range(observation.rows)])


def require_bins(attack: str, bins: int, images: int) -> None:
    """Raises:
    UsageError: more images are behind one observation than there are bins to tell them apart.
    """
    if bins < images:
        raise UsageError(
            f"attack {attack!r} tells at most {bins} images apart, one in a bin, and {images} are behind one "
            f"observation; use --attack-arg {attack}.bins={images * 8}, or a smaller --batch-size"
        )


def _send(gain: float, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor:
    bright = brightness(model)
    sent, named = weights.clone(), {}
    named = model.layout.split(sent)
    cutoffs = quantiles(public.flatten(1) @ bright.to(public), named[_BIAS].shape[-1])
    named[_WEIGHT].copy_(bright.to(weights) / gain)
    named[_BIAS].copy_(-cutoffs / gain)
    return sent


def brightness(model: RowModel) -> Tensor:
    """Positive weights (D,) of pixels, fixed and no two alike, that add up to one.

    Equal ones would do for images; rows of tables whose categories are one-hot would all be equally bright.
    """
    drawn = torch.rand(math.prod(model.image_shape), generator=generator("brightness")) + 0.5
    return drawn / drawn.sum()


def quantiles(values: Tensor, bins: int) -> Tensor:
    """Cutoffs (K,) below K equal shares of public values (n,) above 0; the first is 0."""
    cutoffs = values.double().quantile(torch.arange(bins, device=values.device).double() / bins)
    cutoffs[0] = 0.0
    return cutoffs.to(values)


@dataclass(frozen=True)
class Differences:
    """What the images between neighbouring cutoffs left: of weights (K, D), of biases (K,), and those cutoffs (K,)."""

    weight: Tensor
    bias: Tensor
    cutoffs: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, cutoffs: Tensor) -> "Differences":
        """From gradients of the units' weights (K, D) and biases (K,); above the last cutoff there is no other."""
        return cls(
            -weight.diff(dim=0, append=torch.zeros_like(weight[:1])), -bias.diff(append=bias.new_zeros(1)), cutoffs
        )

    def images(self, count: int, bright: Tensor, by_bias: bool, blank: Tensor) -> Tensor:
        """Those of the ``count`` bins (count, D) that hold most; ``blank`` (D,) where a bin holds nothing.

        Args:
            count: of images.
            bright: (D,), weights of brightness.
            by_bias: the bias gradient tells an image's share of the gradient; else its bin tells how bright it is.
        """
        size = torch.linalg.vector_norm(self.weight, dim=1)
        held, bins = size.topk(count)
        found = self.weight[bins]
        upper = torch.cat([self.cutoffs[1:], self.cutoffs[-1:]])
        middle = (self.cutoffs + upper)[bins] / 2
        share = self.bias[bins] if by_bias else (found * bright).sum(1) / middle
        there = (held > _FAINT * held[0]) & (share != 0)
        return torch.where(there[:, None], found / share[:, None], blank)


def _images(observation: Observation, row: int) -> Tensor:
    """(n*D,) of one row."""
    layout, target = observation.model.layout, observation.target[row]
    gradients, sent = layout.split(target), layout.split(observation.weights[row])
    bright = brightness(observation.model).to(target)
    cutoffs = -sent[_BIAS] / sent[_WEIGHT][:, :1].squeeze(1) * bright[0]
    differences = Differences.of(gradients[_WEIGHT], gradients[_BIAS], cutoffs)
    return differences.images(observation.examples, bright, tells_shares(observation), blank_of(observation)).flatten()


def tells_shares(observation: Observation) -> bool:
    """Whether bias gradients are as large beside weight gradients as the loss made them, and free of noise."""
    return observation.clipping is None and observation.noise is None and not observation.sparse


def blank_of(observation: Observation) -> Tensor:
    """The mean of public images (D,), a half where nothing is public."""
    prior, width = observation.prior, math.prod(observation.model.image_shape)
    return observation.target.new_full((width,), 0.5) if prior is None else prior.means.mean(0).to(observation.target)
