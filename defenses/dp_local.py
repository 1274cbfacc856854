"""DP-FedAvg, DP-FedSGD, DP-SCAFFOLD: per-example clipping with noise calibrated to replacing one example.

Source: Noble, Bellet and Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data" (AISTATS 2022),
algorithm 1: noise of standard deviation 2 C sigma / B on the mean of B clipped gradients. Which of the algorithms it
becomes is the choice of ``harness train --algorithm``.
"""

from typing import Literal

import torch
from pydantic import model_validator

from harness.defenses.example_noise import known_noise, sanitise
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import RoundContext, State
from harness.federation.defense import Defense, FixedNoise, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import TAPS_AFTER_STEP, Hook, Tap
from harness.noise_level import NoiseLevel
from harness.observation import Clipping, Noise
from harness.privacy import Statement, example_views, make_statement
from harness.settings.ranges import Clip, Sigma
from harness.vectors.clipping import example_factors, noise_deviation
from harness.vectors.layout import spread

_ADDING = (
    "for adding or removing an example: replacing one, as in the paper, takes --batch-sampling without-replacement"
)


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

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        norms = per_example.norms()
        if self.clipping == "whole":
            factors = example_factors(norms, self.clip, "whole")
            return sanitise(per_example, factors, 2 * noise_deviation(self.sigma, self.clip), "sum", context)
        known = norms.masked_fill(~per_example.present[..., None], torch.nan)
        # Nobody's norm is the bound of a batch without examples, which is as noisy as any other.
        bounds = known.nanmedian(dim=1, keepdim=True).values.nan_to_num(nan=self.clip)
        factors = (bounds / norms.clamp_min(1e-30)).clamp(max=1.0)
        mean = per_example.weighted_sum(factors) / context.cohort.batch_size
        scale = spread(bounds[:, 0], context.layout.sizes) * (2 * self.sigma / context.cohort.batch_size)
        return LocalStep(mean + scale * context.gaussian("client_step", mean), factors, noise=scale.amax(1))

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        if self.clipping != "whole" or tap not in TAPS_AFTER_STEP:
            return None
        return Clipping(self.clip, "whole", "example")

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        if hook != Hook.CLIENT_STEP or not self.sigma:
            return None
        if self.clipping != "whole":
            # The median of one example is its own norm.
            level = NoiseLevel(2 * self.sigma, "each") if context.cohort.batch_size == 1 else None
            return Noise("gaussian", None, "layer", level)
        return known_noise(2 * noise_deviation(self.sigma, self.clip), "sum", context.cohort.batch_size)

    def units(self) -> str:
        bound = f"whole to C={self.clip:g}" if self.clipping == "whole" else "layer to the batch's median norm C"
        return (
            f"applies to per-example gradients: clipped per {bound}; noise std 2*sigma*C on the sum of clipped "
            f"per-example gradients (2*sigma*C/B on their mean) with sigma={self.sigma:g} for replacing one example"
        )

    def fixed_noise(self, facts: PrivacyFacts) -> FixedNoise | None:
        if self.sigma == 0 or self.clipping != "whole":
            return None
        return FixedNoise("step", 2 * noise_deviation(self.sigma, self.clip), self.clip)

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        if self.sigma == 0:
            return [make_statement("server", "none", "clipping without noise gives no epsilon", unit="example")]
        if self.clipping != "whole":
            why = "the clipping bound is the private batch's own median norm, which is not itself protected"
            return [make_statement("server", "none", why, unit="example")]
        relation = "" if facts.example_sampler == "without-replacement" else f"; {_ADDING}"
        return [
            make_statement(
                view.name, "sample-DP local view" if view.name == "server" else "sample-DP",
                f"{view.note}{relation}; clients as units are not covered", actual=view.event, delta=facts.delta,
                unit="example", schedule=f"sigma={self.sigma:g}",
            )
            for view in example_views(facts.examples(2 * self.sigma, "whole"))
        ]  # fmt: skip
