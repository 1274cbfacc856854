"""Trap weights: a first layer whose units are rarely active; most active units have only one example.

Half of a unit's weights are negative and outweigh the others, so that only an unusual example activates it. How much
they outweigh is set by public data: every unit is active for one public example in as many as are behind what the
server sees. No module is added. Source: Boenisch et al., "When the Curious Abandon Honesty: Federated Learning Is Not
Private" (IEEE EuroS&P 2023), section 5; they scale all units alike and know no public data. Which of the units that
fired did so for one example alone, the weights tell (:mod:`harness.attacks.relu_layer`).
"""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks.attack import ATTACKS, validated_attack
from harness.attacks.relu_layer import rectified_layer
from harness.attacks.spear import Spear
from harness.base.randomness import generator
from harness.models import RowModel
from harness.observation import Tier
from harness.tampering import Tamper


@ATTACKS.register("trap_weights")
@validated_attack
class TrapWeights(Spear):
    """Attack without settings of its own, which reads as :class:`~harness.attacks.spear.Spear` does."""

    tier: ClassVar[Tier] = "tampering"

    def tamper(self, clients: int, examples: int) -> Tamper:
        return Tamper(partial(_send, clients * examples))


def _send(together: int, model: RowModel, weights: Tensor, public: Tensor, client: int) -> Tensor:
    weight, bias = rectified_layer(model, "trap_weights")
    sent = weights.clone()
    named, examples = model.layout.split(sent), public.flatten(1)
    units, features = named[weight].shape[1:]
    random = generator("trap weights", units, features)
    sizes = torch.randn(units, features, generator=random).abs().to(weights) / (3 * features) ** 0.5
    negative = torch.rand(units, features, generator=random).argsort(1).to(weights.device) < features // 2
    down, up = sizes * negative, sizes * ~negative
    # A unit whose positive weights are scaled by s is active where s is above this.
    needed = (examples @ down.T) / (examples @ up.T).clamp_min(1e-12)
    scale = needed.double().quantile(1 / max(together, 2), dim=0).to(weights)
    named[weight].copy_(scale[:, None] * up - down)
    named[bias].zero_()
    return sent
