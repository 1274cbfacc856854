"""DP-FedAvg, DP-FedSGD, DP-SCAFFOLD: per-example clipping with noise calibrated to replacing one example.

Source: Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data" (AISTATS 2022),
algorithm 1: noise of standard deviation 2 C sigma / B on the mean of B clipped gradients. Which of the algorithms it
becomes is the choice of ``harness train --algorithm``.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from harness.base.ranges import Clip, Sigma
from harness.base.vectors import noise_deviation, spread
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import AnyClip, ClipExamples, GaussianNoise
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Noise, NoiseLevel
from harness.privacy import Statement

_ADDING = (
    "for adding or removing an example: replacing one, as in the paper, takes --batch-sampling without-replacement"
)


@dataclass(frozen=True)
class ClipToBatchMedian(AnyClip):
    """Clips every tensor of an example's gradient to the median norm of that tensor in the batch."""

    unit = "example"
    fixed = False
    points = (Point.EXAMPLES,)

    def on_step(self, state: StepState, context: RoundContext) -> None:
        known = state.norms.masked_fill(~state.examples.present[..., None], torch.nan)
        # Nobody's norm is the bound of a batch without examples, which is as noisy as any other.
        bounds = known.nanmedian(dim=1, keepdim=True).values.nan_to_num(nan=self.bound)
        state.scale((bounds / state.norms.clamp_min(1e-30)).clamp(max=1.0))
        state.bounds = spread(bounds[:, 0], context.layout.sizes)

    def known(self, context: RoundContext) -> float | None:
        return None

    def open_noise(self, sigma: float, context: RoundContext) -> Noise:
        # The median of one example is its own norm.
        level = NoiseLevel(sigma, "each") if context.cohort.batch_size == 1 else None
        return Noise("gaussian", None, "layer", level)

    def words(self) -> str:
        return "clipped per layer to the batch's median norm C"


@dataclass(frozen=True)
class NoiseForReplacing(GaussianNoise):
    """Noise of twice the paper's ``printed`` sigma, which hides that one example is replaced by another."""

    printed: float = 0.0

    def on_step(self, state: StepState, context: RoundContext) -> None:
        if not isinstance(self.of, ClipToBatchMedian):
            return super().on_step(state, context)
        mean = state.mean()
        assert isinstance(state.bounds, Tensor)  # what the clip made of them
        scale = state.bounds * (self.level / context.cohort.batch_size)
        state.direction = mean + scale * context.gaussian(self.purpose, mean)
        state.louder(scale.amax(1))

    def schedule(self) -> str:
        return f"sigma={self.printed:g}"

    def claimed(self, facts: PrivacyFacts) -> None:
        return None

    def condition(self, facts: PrivacyFacts) -> str:
        return "" if facts.example_sampler == "without-replacement" else f"; {_ADDING}"

    def words(self) -> str:
        return (
            "noise std 2*sigma*C on the sum of clipped per-example gradients (2*sigma*C/B on their mean) with "
            f"sigma={self.printed:g} for replacing one example"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        if not isinstance(self.of, ClipToBatchMedian) or not self.level:
            return super().statements(facts)
        why = "the clipping bound is the private batch's own median norm, which is not itself protected"
        return states_nothing(why, "example")


@DEFENSES.register("dp_local")
@validated_defense
class DPLocal(Defense):
    """Clips each example's gradient and adds noise of std 2 * ``sigma`` * C on their sum.

    ``clipping``: the ``whole`` gradient to ``clip``, or, as the released code does, every tensor to the median norm of
    that tensor in the batch (``median_per_tensor``), which depends on private data and is covered by no guarantee.
    """

    clip: Clip = 1.0
    sigma: Sigma = 60.0
    clipping: Literal["whole", "median_per_tensor"] = "whole"

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> "DPLocal":
        noise_deviation(self.sigma, self.clip)
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipExamples(self.clip, "whole") if self.clipping == "whole" else ClipToBatchMedian(self.clip)
        return [clip, NoiseForReplacing(2 * self.sigma, of=clip, printed=self.sigma)]
