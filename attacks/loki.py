"""Loki: each client is sent kernels of its own, so that a secure sum of all their gradients keeps them apart.

Before the layer of bins stands a convolution of single pixels with room for one copy of the image per client. Each
client's kernels copy its image into a place of its own and leave the others empty, so that its weight gradients, the
products with its image, are zero everywhere else: the sum over clients is all their gradients side by side.
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


@ATTACKS.register("loki")
@validated_attack
class Loki(ClosedForm):
    """``bins`` that all clients share, and ``gain`` as of imprint; where each message is seen, there is one client."""

    bins: Bins = 64
    gain: Gain = 1.0
    tier: ClassVar[Tier] = "tampering"

    def tamper(self, clients: int, examples: int) -> Tamper:
        require_bins("loki", self.bins, examples)
        front = partial(Imprint, bins=self.bins, clients=clients, gain=self.gain)
        module = f"kernels that differ by client before {self.bins} units over {clients} copies of the image"
        return Tamper(partial(_send, self.gain), front, module)

    def solved(self, observation: Observation) -> Tensor:
        return torch.stack([_images(observation, row) for row in range(observation.rows)])


def _send(gain: float, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor:
    sent = weights.clone()
    named, channels = write_bins(model, sent, public, gain), model.image_shape[0]
    if _COPY in named:
        kernels = torch.zeros_like(named[_COPY][0])
        kernels[client * channels : (client + 1) * channels, :, 0, 0] = torch.eye(channels).to(kernels)
        named[_COPY].copy_(kernels)
    return sent


def _images(observation: Observation, row: int) -> Tensor:
    """(n*D,) of one row, client after client."""
    layout = observation.model.layout
    gradients, sent = (layout.split(flat[row]) for flat in (observation.target, observation.weights))
    bright = brightness(observation.model).to(observation.target)
    cutoffs, blank = read_cutoffs(sent, bright), blank_of(observation)
    copies = gradients[WEIGHT].unflatten(1, (-1, len(bright))).unbind(1)
    by_bias = len(copies) == 1 and tells_shares(observation)
    each = observation.examples // len(copies)
    found = [Differences.of(own, gradients[BIAS], cutoffs).images(each, bright, by_bias, blank) for own in copies]
    return torch.cat(found).flatten()
