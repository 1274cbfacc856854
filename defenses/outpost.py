"""Outpost: prunes some local steps and adds noise to them, more in tensors whose weights vary more.

Source: Wang, Hugh, Li 2023, "More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production
Federated Learning", section IV, as in plato badbe27c, ``defense/Outpost/perturb.py`` (later commits change nothing).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from harness.base.ranges import NonNegative
from harness.defenses.claimed import of_filter
from harness.defenses.nvflare import percentile
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState
from harness.federation.taps import Point
from harness.observation import Noise

Percent = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True)
class PerturbByRisk(Operation):
    """Zeroes small numbers of a step and adds noise where Fisher information is large; settings as of the defense.

    The deviation is ``noise_base`` times the variance of a tensor's weights, 1 at most. The information is the squared
    gradient, in the mean over the first dimension of a tensor.
    """

    beta: float
    phi: float
    prune_base: float
    noise_base: float

    points = (Point.STEP,)
    about = "gradients of a local step"
    zeroes = True
    reads_network = True
    noises = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        assert context.batch is not None
        mean, layout, made = state.mean(), context.layout, []
        weights, drawn = context.batch.weights.split(layout.sizes, 1), context.gaussian("outpost", mean)
        parts = [part if part.dim() > 1 else part[:, None] for part in layout.split(mean).values()]
        information = [part.square().mean(1, keepdim=True) for part in parts]
        least = percentile(torch.cat([one.flatten(1) for one in information], 1), 100 - self.phi)
        for part, own, told, noise in zip(parts, weights, information, drawn.split(layout.sizes, 1), strict=True):
            flat = part.flatten(1)
            risk = own.var(1, correction=min(1, own.shape[1] - 1), keepdim=True).clamp(max=1.0)
            large = (told >= least.reshape(-1, *[1] * (told.dim() - 1))).expand_as(part).flatten(1)
            kept = flat.where(flat.abs() >= percentile(flat.abs(), self.prune_base), 0.0)
            made.append(kept + self.noise_base * risk * large.to(mean) * noise)
        turn = context.uniform("outpost", mean[:, :1]) < 1 / (1 + self.beta * (context.local_step + 1))
        state.direction = torch.cat(made, 1).where(turn, mean)

    def noise(self, context: RoundContext) -> Noise:
        return Noise("unknown", None, "layer", unread=True, bare=True)

    def words(self) -> str:
        return (
            f"with probability 1/(1 + {self.beta:g} step), numbers below the {self.prune_base:g}th percentile of a "
            f"tensor are zeroed, and the {self.phi:g}% with most information get noise by the variance of the weights"
        )


@DEFENSES.register("paper:Outpost")
@validated_defense
class Outpost(Defense):
    """Perturbs a local step with a probability that falls by ``beta``; ``phi`` and ``prune_base`` are percents.

    See :class:`PerturbByRisk`. The steps of a round count as one pass over a client's data.
    """

    beta: NonNegative = 0.125
    phi: Percent = 40.0
    prune_base: Percent = 80.0
    noise_base: NonNegative = 0.8

    def operations(self, cohort: Cohort) -> list[Operation]:
        perturbed = PerturbByRisk(self.beta, self.phi, self.prune_base, self.noise_base)
        return [perturbed, of_filter("paper:Outpost", self, (), perturbed)]
