"""AdaClip: every coordinate is centred and scaled before clipping, by mean and spread learned from noisy outputs.

Source: Pichapati et al. 2019, "AdaCliP: Adaptive Clipping for Private SGD". See docs/defenses.md.
"""

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.stating import adaptive_step_statements
from harness.federation.context import RoundContext, State
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import TAPS_AFTER_STEP, Hook, Tap
from harness.observation import Clipping, Noise
from harness.privacy import GaussianLimit, Limit, NoLimit, Statement
from harness.settings.ranges import Clip, Sigma
from harness.vectors.clipping import clip

Share = Annotated[float, Field(ge=0, le=1)]
Variance = Annotated[float, Field(gt=0, le=1e30)]


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

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        gradients = per_example.materialise()
        batch = context.cohort.batch_size
        centre, variance = self._state(gradients, context)
        spread = variance.sqrt()
        scale = spread.sqrt() * spread.sum(-1, keepdim=True).sqrt()
        scaled = clip((gradients - centre[:, None]) / scale[:, None], 1.0, context.layout.groups("whole"))
        # A place without an example must not count as one at -centre.
        total = (scaled * per_example.present[..., None]).sum(1)
        noise = self.sigma / batch
        step = scale * (total / batch + noise * context.gaussian("client_step", total)) + centre
        self._learn(step, centre, variance, scale * noise, context)
        return LocalStep(step, noise=scale.amax(-1) * noise)

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

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return Clipping(self.clip, "whole", "example") if tap in TAPS_AFTER_STEP else None

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        if hook != Hook.CLIENT_STEP or not self.sigma:
            return None
        # Later steps are clipped around a centre that is noisy itself, by a scale that is the client's own.
        stays = context.local_step == 0 or (self.mean_decay == 1 and self.variance_decay == 1)
        return (
            Noise("gaussian", self.sigma * self.clip / context.cohort.batch_size) if stays else Noise("unknown", None)
        )

    def reconstruction_limit(self, hook: Hook, context: RoundContext) -> Limit | NoLimit:
        if hook != Hook.CLIENT_STEP or not self.sigma:
            return super().reconstruction_limit(hook, context)
        # (g - a) / b has norm 1 at most under noise of sigma, and a and b follow noisy outputs.
        return GaussianLimit(1 / (self.sigma * context.noise_scale))

    def units(self) -> str:
        return (
            f"applies to per-example gradients: (g-a)/b clipped per whole to 1, first b={self.clip:g}; "
            f"noise std sigma*b on the sum of the batch with sigma={self.sigma:g}"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        why = "scaled gradients clipped to 1 with noise on their sum, and a, b follow noisy outputs only"
        return adaptive_step_statements(facts, self.sigma, why)
