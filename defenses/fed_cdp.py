"""Fed-CDP: per-example clipping with a fixed bound and fixed Gaussian noise at every local step.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", sections 4 and 5.
"""

from pydantic import model_validator

from harness.defenses.example_noise import CONVENTION_TEXT, Convention, known_noise, sanitise
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import RoundContext, State
from harness.federation.defense import Defense, FixedNoise, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import TAPS_AFTER_STEP, Hook, Tap
from harness.observation import Clipping, Noise
from harness.privacy import Statement, example_views, make_statement, sum_multiplier
from harness.settings.ranges import Clip, Sigma
from harness.vectors.clipping import example_factors, noise_deviation
from harness.vectors.layout import Grouping


@DEFENSES.register("fed_cdp")
@validated_defense
class FedCDP(Defense):
    """Clips each example's gradient to ``clip`` and adds noise of std ``sigma`` * ``clip`` by ``convention``."""

    clip: Clip = 4.0
    sigma: Sigma = 6.0
    convention: Convention = "sum"
    clipping: Grouping = "layer"

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> "FedCDP":
        noise_deviation(self.sigma, self.clip)
        return self

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        factors = example_factors(per_example.norms(), self.clip, self.clipping)
        return sanitise(per_example, factors, noise_deviation(self.sigma, self.clip), self.convention, context)

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return Clipping(self.clip, self.clipping, "example") if tap in TAPS_AFTER_STEP else None

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        if hook is not Hook.CLIENT_STEP:
            return None
        return known_noise(noise_deviation(self.sigma, self.clip), self.convention, context.cohort.batch_size)

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        deviation = noise_deviation(self.sigma, self.clip)
        return Noise("gaussian", deviation) if deviation and self.convention == "per_example" else None

    def units(self) -> str:
        return (
            f"applies to per-example gradients: clipped per {self.clipping} to C={self.clip:g}; "
            f"{CONVENTION_TEXT[self.convention]} with sigma={self.sigma:g}, S=C"
        )

    def fixed_noise(self, facts: PrivacyFacts) -> FixedNoise | None:
        if self.sigma == 0:
            return None
        multiplier = sum_multiplier(self.sigma, self.convention, facts.cohort.batch_size)
        return FixedNoise("step", multiplier * self.clip, facts.whole_bound(self.clip, self.clipping))

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        if self.sigma == 0:
            return [make_statement("server", "none", "clipping without noise gives no epsilon", unit="example")]
        claimed = facts.claimed_for_examples([self.sigma])
        multiplier = sum_multiplier(self.sigma, self.convention, facts.cohort.batch_size)
        return [
            make_statement(
                view.name, "sample-DP local view" if view.name == "server" else "sample-DP",
                f"{view.note}; clients as units are not covered", actual=view.event, claimed=claimed,
                delta=facts.delta, unit="example", schedule=f"sigma={self.sigma:g}",
            )
            for view in example_views(facts.examples(multiplier, self.clipping))
        ]  # fmt: skip
