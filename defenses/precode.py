"""PRECODE: a variational bottleneck before the last layer, whose sample blurs the gradients of all layers before it.

Source: Scheliga, Mäder, Seeland 2022, "PRECODE - A Generic Model Extension to Prevent Deep Gradient Leakage", section
3, as in PRECODE c66adc4c, ``src/VariationalBottleneck.py``. The network has the bottleneck by the name of its model
(``lenet+precode``). Two things are simpler here: a client draws one sample for all examples of a round, and the loss
has no term for the divergence of the bottleneck (a factor of 0.001 there).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState
from harness.federation.privacy_facts import NEVER_SENT
from harness.federation.taps import Point
from harness.models.changes import BOTTLENECK
from harness.observation import Chosen
from harness.privacy import NoLimit


def _place(layout: Layout) -> slice:
    """The coordinates of the sample.

    Raises:
        UsageError: the network has no bottleneck.
    """
    start = 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        if name.endswith(BOTTLENECK):
            return slice(start, start + size)
        start += size
    raise UsageError("paper:PRECODE is a change of the network; add +precode to the name of --model")


_LAYERS = ("encoder", "decoder")


def _name(layout: Layout) -> str:
    """Return what the names of the bottleneck's layers begin with."""
    _place(layout)
    return next(name.removesuffix(BOTTLENECK) for name in layout.names if name.endswith(BOTTLENECK))


def _came_in(weight: Tensor, bias: Tensor) -> Tensor:
    """The input (R, F) of a linear layer, from the gradients (R, O, F) and (R, O) of one example."""
    return torch.einsum("rof,ro->rf", weight, bias) / bias.square().sum(1, keepdim=True).clamp_min(1e-30)


@dataclass(frozen=True)
class DrawSample(Operation):
    """Each client draws the sample of its bottleneck for a round."""

    points = (Point.NETWORK,)
    about = "the network"

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        rows, place = rows.clone(), _place(context.layout)
        rows[:, place] = context.gaussian("bottleneck", rows[:, place])
        return rows

    def trained(self, weights: Tensor, gradients: Tensor, layout: Layout) -> Tensor:
        # The gradient of one example shows what came into each layer (Balunovic et al. 2022 attack the layers beside
        # the bottleneck alone): features and code, and so the sample that lies between them.
        own, seen, name = layout.split(weights), layout.split(gradients), _name(layout)
        features, code = (_came_in(seen[f"{name}{one}.weight"], seen[f"{name}{one}.bias"]) for one in _LAYERS)
        encoded = torch.einsum("rof,rf->ro", own[f"{name}encoder.weight"], features) + own[f"{name}encoder.bias"]
        mean, spread = encoded.chunk(2, -1)
        found, place = weights.clone(), _place(layout)
        found[:, place] = (code - mean) / softplus(spread)
        return found

    def words(self) -> str:
        return "a bottleneck before its last layer adds noise of a learned size to features"


@dataclass(frozen=True)
class KeepSample(Operation):
    """The sample is neither trained nor sent."""

    points = (Point.STEP,)
    silent = True
    zeroes = True
    reads_network = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        mean = state.mean().clone()
        mean[:, _place(context.layout)] = 0
        state.direction = mean

    def chosen(self, layout: Layout) -> Chosen:
        outs = zip(layout.sizes, layout.names, strict=True)
        return Chosen(tuple(0 if name.endswith(BOTTLENECK) else size for size, name in outs), "layer", "unknown")

    def limit(self, context: RoundContext) -> NoLimit:
        return NoLimit(NEVER_SENT)


@DEFENSES.register("paper:PRECODE")
@validated_defense
class Precode(Defense):
    """Samples the bottleneck of a network ``NAME+precode``; what it has learned decides how much of it is noise."""

    def operations(self, cohort: Cohort) -> list[Operation]:
        drawn = DrawSample()
        return [drawn, KeepSample(), of_filter("paper:PRECODE", self, (), drawn)]
