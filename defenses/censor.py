"""CENSOR: sends a random vector instead of the gradient, with the same norm per tensor, that lowers the loss most.

Source: Zhang et al. 2025, "CENSOR: Defense Against Gradient Inversion via Orthogonal Subspace Bayesian Sampling"
(NDSS), section IV, as in CENSOR 2739a368, ``defense.py`` and ``run_rec.py``: the projection lacks a division by the
length of the gradient, and the gradient itself goes where no trial lowers the loss.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.base.coding import Coding
from harness.base.ranges import Count, Positive
from harness.base.vectors import group_sums, spread
from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.examples import NetworkBatch
from harness.federation.operations import Operation, StepState
from harness.federation.taps import Point
from harness.observation import Noise

_TINY = 1e-30


@dataclass(frozen=True)
class SendOrthogonal(Operation):
    """Sends the best of random vectors of the same lengths that are orthogonal to the gradient; settings as there."""

    trials: int
    rate: float
    rounds: int
    corrected: bool

    points = (Point.STEP,)
    about = "gradients of a local step"
    reads_network = True
    noises = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        if context.round >= self.rounds or context.noise_scale == 0:
            return
        assert context.batch is not None
        sizes, mean, weights = context.layout.sizes, state.mean(), context.batch.weights
        lengths = group_sums(mean.square(), sizes).sqrt()
        sent, least = mean, _loss(context.batch, weights)
        for trial in range(self.trials):
            drawn = context.gaussian(f"trial {trial}", mean)
            drawn = drawn / spread(group_sums(drawn.square(), sizes).sqrt().clamp_min(_TINY), sizes)
            along = group_sums(drawn * mean, sizes) / lengths.clamp_min(_TINY)
            along = along / lengths.clamp_min(_TINY) if self.corrected else along
            drawn = drawn - spread(along, sizes) * mean
            drawn = drawn * spread(lengths / group_sums(drawn.square(), sizes).sqrt().clamp_min(_TINY), sizes)
            found = _loss(context.batch, weights - self.rate * drawn)
            sent, least = drawn.where((found < least)[:, None], sent), found.minimum(least)
        state.direction = sent

    def noise(self, context: RoundContext) -> Noise | None:
        # The level is the length of the gradient, which is sent exactly.
        return Noise("unknown", None, "layer", unread=True, bare=True) if context.round < self.rounds else None

    @property
    def coding(self) -> Coding:
        return Coding("length")

    def words(self) -> str:
        return (
            f"in the first {self.rounds} rounds replaced by the best of {self.trials} random vectors orthogonal to "
            "them, as long in each tensor"
        )


def _loss(batch: NetworkBatch, weights: Tensor) -> Tensor:
    """The mean loss (N,) of each client's examples."""
    scores = batch.network.logits(weights, batch.inputs).detach()
    losses = cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), reduction="none").reshape(batch.labels.shape)
    return losses.mean(1) if batch.present is None else (losses * batch.present).sum(1)


@DEFENSES.register("paper:CENSOR")
@validated_defense
class Censor(Defense):
    """Sends the best of ``trials`` vectors orthogonal to the gradient, by the loss after a step of ``rate``.

    It acts in the first ``rounds``. ``corrected``: they are orthogonal, as the paper has it, and not nearly.
    """

    trials: Count = 20
    rate: Positive = 1e-4
    rounds: Count = 10
    corrected: bool = False

    def operations(self, cohort: Cohort) -> list[Operation]:
        sent = SendOrthogonal(self.trials, self.rate, self.rounds, self.corrected)
        return [sent, of_filter("paper:CENSOR", self, (), sent)]
