"""Additive random noise without clipping, on local gradients or on updates.

Source: Zhu et al. 2019, "Deep Leakage from Gradients", section 5.1. See docs/defenses.md.
"""

import math
from typing import Literal

from torch import Tensor

from harness.defenses.example_noise import noised_sum, places
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import RoundContext
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Hook
from harness.observation import Noise as KnownNoise
from harness.privacy import Statement, make_statement
from harness.settings.ranges import NonNegative

_PLACES = {
    "example": "each per-example gradient",
    "gradient": "each local step's batch gradient",
    "update": "each update sent (a gradient times the learning rate)",
}


@DEFENSES.register("noise")
@validated_defense
class Noise(Defense):
    """Adds Gaussian or Laplace noise to every coordinate.

    ``param`` says what ``amount`` is: the noise's standard deviation (``std``), its variance (``var``) or the
    distribution's own scale (``scale``: b of the Laplace distribution, whose standard deviation is b sqrt 2).
    ``applies_to``: each ``example``'s gradient, the batch ``gradient`` of a local step, or the ``update``.
    """

    amount: NonNegative = 0.01
    param: Literal["std", "var", "scale"] = "std"
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    applies_to: Literal["example", "gradient", "update"] = "update"

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on a coordinate."""
        if self.param == "var":
            return math.sqrt(self.amount)
        return self.amount * (math.sqrt(2) if self._laplace and self.param == "scale" else 1.0)

    @property
    def _laplace(self) -> bool:
        return self.distribution == "laplace"

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        if self.applies_to == "gradient":
            return LocalStep(self._noised(per_example.mean(), "client_step", context), noise=self.deviation)
        if self.applies_to == "example":
            values, batch = per_example.materialise(), context.cohort.batch_size
            total, noisy = noised_sum(values, self._drawn(places(values, batch), "client_step", context))
            return LocalStep(total / batch, None, noisy, self.deviation / math.sqrt(batch))
        return LocalStep(per_example.mean())

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return self._noised(update, "client_message", context) if self.applies_to == "update" else update

    def _noised(self, values: Tensor, purpose: str, context: RoundContext) -> Tensor:
        return values + self._drawn(values, purpose, context)

    def _drawn(self, like: Tensor, purpose: str, context: RoundContext) -> Tensor:
        if self._laplace:
            return self.deviation / math.sqrt(2) * context.laplace(purpose, like)
        return self.deviation * context.gaussian(purpose, like)

    def noise_of(self, hook: Hook, context: RoundContext) -> KnownNoise | None:
        if not self.acts_at(hook) or not self.deviation:
            return None
        if self.applies_to != "example":
            return KnownNoise(self.distribution, self.deviation)
        batch = context.cohort.batch_size
        return KnownNoise(self.distribution if batch == 1 else "unknown", self.deviation / math.sqrt(batch))

    def noise_of_examples(self, context: RoundContext) -> KnownNoise | None:
        return (
            KnownNoise(self.distribution, self.deviation) if self.applies_to == "example" and self.deviation else None
        )

    def only_adds(self, hook: Hook) -> bool:
        return True

    def acts_at(self, hook: Hook) -> bool:
        return hook == (Hook.CLIENT_MESSAGE if self.applies_to == "update" else Hook.CLIENT_STEP)

    def units(self) -> str:
        return (
            f"applies to {_PLACES[self.applies_to]}: {self.distribution} noise of std {self.deviation:.4g} per "
            f"coordinate ({self.param}={self.amount:g}); no clipping"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        why = "noise without clipping: one record may change the result by any amount, so no epsilon exists"
        unit = "client" if self.applies_to == "update" else "example"
        return [make_statement("server", "none", why, unit=unit)]
