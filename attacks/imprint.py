"""Imprint: a layer of bins put before the network; each bin that one image alone falls into gives that image away.

Unit k of the layer is active for images whose weighted brightness lies above the cutoff c_k, and every active unit has
the same derivative. So the gradients of neighbouring units differ by those of the images between their cutoffs: with
one image there, (dW_k - dW_{k+1}) / (db_k - db_{k+1}) is that image. Cutoffs are quantiles of public images.
Source: Fowl et al., "Robbing the Fed" (ICLR 2022), section 4. Where the defense clips weights and biases apart, or
hides them in noise, the quotient says nothing; there the bin itself says how bright the image is, which is ours.
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


def _send(gain: float, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor:
    sent = weights.clone()
    write_bins(model, sent, public, gain)
    return sent


def _images(observation: Observation, row: int) -> Tensor:
    """(n*D,) of one row."""
    layout = observation.model.layout
    gradients, sent = (layout.split(flat[row]) for flat in (observation.target, observation.weights))
    bright = brightness(observation.model).to(observation.target)
    differences = Differences.of(gradients[WEIGHT], gradients[BIAS], read_cutoffs(sent, bright))
    return differences.images(observation.examples, bright, tells_shares(observation), blank_of(observation)).flatten()
