"""Imprint: a layer of bins before the network; each bin that only one image falls into reveals that image.

Unit k of the layer is active for images whose weighted brightness lies above the cutoff c_k, and every active unit has
the same derivative. So the gradients of neighbouring units differ by those of the images between their cutoffs: with
one image there, (dW_k - dW_{k+1}) / (db_k - db_{k+1}) is that image. Cutoffs are quantiles of public images.
Source: Fowl et al., "Robbing the Fed" (ICLR 2022), section 4. Where the defense clips weights and biases apart, or
hides them in noise, the quotient says nothing; there the bin itself says how bright the image is, which is ours.

Loki: each client is sent kernels of its own, so that a secure sum of all their gradients keeps them apart. Before the
layer of bins stands a convolution of single pixels with room for one copy of the image per client. Each client's
kernels copy its image into a place of its own and leave the others empty, so that its weight gradients, the products
with its image, are zero everywhere else: the sum over clients is all their gradients side by side.
Source: Zhao et al., "LOKI: Large-scale Data Reconstruction Attack against Federated Learning through Model
Manipulation" (IEEE S&P 2024), section 4. Bias gradients are of no client alone; how bright an image is, its bin says.
"""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.bins import (
    BIAS,
    WEIGHT,
    Bins,
    Differences,
    Gain,
    blank_of,
    brightness,
    read_cutoffs,
    require_bins,
    tells_shares,
    write_bins,
)
from harness.models import RowModel
from harness.models.imprint import Imprint
from harness.observation import Observation, Tier
from harness.tampering import Tamper

_COPY = "front.copy.weight"


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


@ATTACKS.register("loki")
@validated_attack
class Loki(ImprintAttack):
    """``bins`` that all clients share, and ``gain`` as of imprint; where each message is seen, there is one client."""

    bins: Bins = 64

    def tamper(self, clients: int, examples: int) -> Tamper:
        require_bins("loki", self.bins, examples)
        front = partial(Imprint, bins=self.bins, clients=clients, gain=self.gain)
        module = f"kernels that differ by client before {self.bins} units over {clients} copies of the image"
        return Tamper(partial(_send, self.gain), front, module)


def _send(gain: float, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor:
    sent = weights.clone()
    named, channels = write_bins(model, sent, public, gain), model.image_shape[0]
    if _COPY in named:
        kernels = torch.zeros_like(named[_COPY][0])
        kernels[client * channels : (client + 1) * channels, :, 0, 0] = torch.eye(channels).to(kernels)
        named[_COPY].copy_(kernels)
    return sent


def _images(observation: Observation, row: int) -> Tensor:
    """(n*D,) of one row, client after client where each has a copy of its own."""
    layout = observation.model.layout
    gradients, sent = (layout.split(flat[row]) for flat in (observation.target, observation.weights))
    bright = brightness(observation.model).to(observation.target)
    cutoffs, blank = read_cutoffs(sent, bright), blank_of(observation)
    copies = gradients[WEIGHT].unflatten(1, (-1, len(bright))).unbind(1)
    by_bias = len(copies) == 1 and tells_shares(observation)
    each = observation.examples // len(copies)
    found = [Differences.of(own, gradients[BIAS], cutoffs).images(each, bright, by_bias, blank) for own in copies]
    return torch.cat(found).flatten()
