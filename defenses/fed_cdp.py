"""Fed-CDP: per-example clipping with a fixed bound and fixed Gaussian noise at every local step.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", sections 4 and 5.
"""

from typing import Annotated

from pydantic import Field, model_validator

from harness.clipping import example_factors, noise_deviation
from harness.defenses.example_noise import CONVENTION_TEXT, Convention, sanitise
from harness.defenses.hooks import Defense, Guarantee, LocalStep, PerExample, RoundContext
from harness.defenses.registry import DEFENSES, validated_defense
from harness.layout import Grouping
from harness.surfaces import TAPS_AFTER_STEP, Clipping


@DEFENSES.register("fed_cdp")
@validated_defense
class FedCDP(Defense):
    """Clips each example's gradient to ``clip`` and adds noise of std ``sigma`` * ``clip`` by ``convention``."""

    clip: Annotated[float, Field(gt=0)] = 4.0
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 6.0
    convention: Convention = "sum"
    clipping: Grouping = "layer"

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> "FedCDP":
        noise_deviation(self.sigma, self.clip)
        return self

    def client_step(self, per_example: PerExample, context: RoundContext) -> LocalStep:
        factors = example_factors(per_example.norms(), self.clip, self.clipping)
        return sanitise(per_example, factors, noise_deviation(self.sigma, self.clip), self.convention, context)

    def clipping_at(self, tap: str, learning_rate: float) -> Clipping | None:
        return Clipping(self.clip, self.clipping, "example") if tap in TAPS_AFTER_STEP else None

    def units(self) -> str:
        return (
            f"applies to per-example gradients: clipped per {self.clipping} to C={self.clip:g}; "
            f"{CONVENTION_TEXT[self.convention]} with sigma={self.sigma:g}, S=C"
        )

    def guarantees(self) -> list[Guarantee]:
        if self.sigma == 0:
            return [Guarantee("server", "none", "example", None, "clipping without noise gives no epsilon")]
        note = (
            "valid for examples sampled by Poisson or without replacement inside each participating client; "
            "with per-layer clipping the effective multiplier is sigma/sqrt(number of tensors); "
            "clients as units are not covered"
        )
        return [Guarantee("server", "sample-DP local view", "example", "add/remove", note)]
