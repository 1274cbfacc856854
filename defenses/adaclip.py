"""AdaClip: every coordinate is centred and scaled before clipping, by mean and spread learned from noisy outputs.

Source: Pichapati et al. 2019, "AdaCliP: Adaptive Clipping for Private SGD". See docs/defenses.md.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.base.ranges import Clip, Sigma
from harness.base.vectors import clip
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Clipping, Noise
from harness.privacy import GaussianLimit, Limit, Statement, example_views, make_statement

Share = Annotated[float, Field(ge=0, le=1)]
Variance = Annotated[float, Field(gt=0, le=1e30)]


@dataclass(frozen=True)
class NoiseAroundCentre(Operation):
    """Clips (g - a) / b of each example to norm 1 as a whole and adds noise of std ``sigma`` to the batch's sum.

    a and b are the client's own of a round, as :class:`AdaClip` says; ``clip`` is the first b.
    """

    clip: float
    sigma: float
    mean_decay: float
    variance_decay: float
    variance_low: float
    variance_high: float

    points = (Point.STEP,)
    clips = noises = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        gradients, batch = state.gradients(), context.cohort.batch_size
        centre, variance = self._state(gradients, context)
        spread = variance.sqrt()
        scale = spread.sqrt() * spread.sum(-1, keepdim=True).sqrt()
        scaled = clip((gradients - centre[:, None]) / scale[:, None], 1.0, context.layout.groups("whole"))
        # A place without an example must not count as one at -centre.
        total = (scaled * state.examples.present[..., None]).sum(1)
        noise = self.sigma / batch
        state.direction = scale * (total / batch + noise * context.gaussian("client_step", total)) + centre
        self._learn(state.direction, centre, variance, scale * noise, context)
        state.louder(scale.amax(-1) * noise)

    def _state(self, gradients: Tensor, context: RoundContext) -> tuple[Tensor, Tensor]:
        """The running mean and squared spread (N, P) before this step."""
        if "centre" in context.local:
            return context.local["centre"], context.local["variance"]
        centre = torch.zeros_like(gradients[:, 0])
        return centre, torch.full_like(centre, self.clip**2 / centre.shape[-1])

    def _learn(self, step: Tensor, centre: Tensor, variance: Tensor, deviation: Tensor, context: RoundContext) -> None:
        """Updates the state from the noisy step (N, P) alone; ``deviation`` (N, P) is that of the noise in it."""
        centre = self.mean_decay * centre + (1 - self.mean_decay) * step
        seen = ((step - centre).square() - deviation.square()).clamp(self.variance_low, self.variance_high)
        context.local["centre"] = centre
        context.local["variance"] = self.variance_decay * variance + (1 - self.variance_decay) * seen

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return Clipping(self.clip, "whole", "example")

    def noise(self, context: RoundContext) -> Noise | None:
        if not self.sigma:
            return None
        # Later steps are clipped around a centre that is noisy itself, by a scale that is the client's own.
        stays = context.local_step == 0 or (self.mean_decay == 1 and self.variance_decay == 1)
        return (
            Noise("gaussian", self.sigma * self.clip / context.cohort.batch_size) if stays else Noise("unknown", None)
        )

    def limit(self, context: RoundContext) -> Limit | None:
        # (g - a) / b has norm 1 at most under noise of sigma, and a and b follow noisy outputs.
        return GaussianLimit(1 / (self.sigma * context.noise_scale)) if self.sigma else None

    def words(self) -> str:
        return (
            f"(g-a)/b clipped per whole to 1, first b={self.clip:g}; "
            f"noise std sigma*b on the sum of the batch with sigma={self.sigma:g}"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        if self.sigma == 0:
            return states_nothing("clipping without noise gives no epsilon", "example")
        why = "scaled gradients clipped to 1 with noise on their sum, and a, b follow noisy outputs only"
        # The sum over clients hides more only where all add the same noise; here each client's follows its own b.
        views = example_views(facts.examples(self.sigma, "whole"), uneven="with a bound of each client's own")
        return [
            make_statement(
                view.name, "sample-DP local view" if view.name == "server" else "sample-DP",
                f"{why}; {view.note}; clients as units are not covered", actual=view.event,
                claimed=facts.claimed_for_examples([self.sigma]), delta=facts.delta, unit="example",
                schedule=f"sigma={self.sigma:g}",
            )
            for view in views
        ]  # fmt: skip


@DEFENSES.register("adaclip")
@validated_defense
class AdaClip(Defense):
    """Clips (g - a) / b of each example to norm 1 as a whole and adds noise of std ``sigma`` to the batch's sum.

    a is a running mean of what came out, b follows its spread. They start anew every round, with a = 0 and b = ``clip``
    for every coordinate, which is plain clipping to ``clip``. ``mean_decay`` and ``variance_decay`` (beta_1, beta_2)
    at 1 keep them there; ``variance_low`` and ``variance_high`` (h_1, h_2) hold each estimate of a squared spread.
    """

    clip: Clip = 4.0
    sigma: Sigma = 6.0
    mean_decay: Share = 0.99
    variance_decay: Share = 0.9
    variance_low: Variance = 1e-12
    variance_high: Variance = 1.0

    @model_validator(mode="after")
    def _fits_together(self) -> "AdaClip":
        if self.clip == float("inf"):
            raise ValueError("an infinite clip leaves nothing to adapt; use a finite clip")
        if self.variance_low > self.variance_high:
            raise ValueError(f"variance_low={self.variance_low:g} lies above variance_high; lower it")
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [
            NoiseAroundCentre(
                self.clip, self.sigma, self.mean_decay, self.variance_decay, self.variance_low, self.variance_high
            )
        ]
