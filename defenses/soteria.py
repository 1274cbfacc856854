"""Soteria: zeroes the gradient of those features before the last layer that reveal most of the input.

Source: Sun et al. 2021, "Soteria: Provable Defense against Privacy Leakage in Federated Learning from Representation
Perspective", as in Soteria 23cf90e9, ``GS_attack/reconstruct_image.py``. All other tensors leave exactly.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.examples import NetworkBatch
from harness.federation.operations import Operation, StepState
from harness.federation.taps import Point

_MORE = 0.1  # is added to a feature that the released code divides by


@dataclass(frozen=True)
class MaskFeatures(Operation):
    """Zeroes columns of the last layer's weight gradient: of features whose score lies below a percentile.

    The score of a feature r is the sum over the batch of the length of its derivative by the input over r + 0.1.
    """

    percentile: float

    points = (Point.STEP,)
    about = "gradients of the last layer"
    reads_network = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        assert context.batch is not None
        name, mean = _last_matrix(context.layout), state.mean()
        scores = _scores(context.batch, name)
        least = scores.quantile(self.percentile / 100, dim=1, keepdim=True)
        parts = context.layout.split(mean)
        parts[name] = parts[name] * (scores.abs() >= least)[:, None].to(mean)
        state.direction = torch.cat([parts[one].flatten(1) for one in context.layout.names], 1)

    @property
    def sparse(self) -> bool:
        return self.percentile > 0

    def words(self) -> str:
        return f"columns of features below the {self.percentile:g}th percentile of their scores are zeroed"


def _last_matrix(layout: Layout) -> str:
    """The name of the last layer's weights.

    Raises:
        UsageError: there are none.
    """
    found = [name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) == 2]
    if not found:
        raise UsageError("paper:Soteria masks the last fully connected layer, and this network has none; take another")
    return found[-1]


def _scores(batch: NetworkBatch, name: str) -> Tensor:
    """The scores (N, F) of features, one backward pass for each of an example."""
    weights, images = batch.weights.detach().requires_grad_(), batch.inputs.detach().requires_grad_()
    total: Tensor | None = None
    with torch.enable_grad():
        scores = batch.network.logits(weights, images)[..., 0]
        for example in range(images.shape[1]):
            # The first score's derivative by the last layer is the representation itself.
            (by_weights,) = torch.autograd.grad(scores[:, example].sum(), weights, create_graph=True)
            features = batch.network.layout.split(by_weights)[name][:, 0]
            slopes = [
                torch.autograd.grad(one.sum(), images, retain_graph=True)[0][:, example].flatten(1).norm(dim=1)
                for one in features.unbind(1)
            ]
            own = torch.stack(slopes, 1) / (features.detach() + _MORE)
            total = own if total is None else total + own
    assert total is not None
    return total.detach()


@DEFENSES.register("paper:Soteria")
@validated_defense
class Soteria(Defense):
    """Zeroes the share ``pruning_rate`` (in percent) of columns of the last layer's weight gradient, by their features.

    The released code has 0, which zeroes none; the paper's tables go up to 80.
    """

    pruning_rate: Annotated[float, Field(ge=0, le=100)] = 80.0

    def operations(self, cohort: Cohort) -> list[Operation]:
        mask = MaskFeatures(self.pruning_rate)
        return [mask, of_filter("paper:Soteria", self, (), mask)]
