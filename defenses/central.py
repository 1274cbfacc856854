"""Central Gaussian noise as TensorFlow Federated and pfl-research add it: on the sum, times the clipping bound.

Sources: TensorFlow Federated 63f73da4, ``aggregators/differential_privacy.py``; pfl-research c9d1f32f,
``pfl/privacy/privacy_mechanism.py``; pfl 0.6.0, ``pfl/privacy/adaptive_clipping.py``; Andrew et al. 2021 for the bound
that adapts.
"""

from typing import Annotated

from pydantic import Field, model_validator

from harness.base.ranges import Clip, NonNegative, Positive, Sigma
from harness.defenses.claimed import of_filter, settings
from harness.defenses.quantile import Steering, clip_to_quantile
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipUpdate, GaussianNoise
from harness.federation.context import Cohort
from harness.federation.defense import Defense
from harness.federation.operations import Operation
from harness.federation.taps import Point


@DEFENSES.register("tff:gaussian_fixed")
@validated_defense
class GaussianFixed(Defense):
    """Clips updates to ``clip`` and adds noise of ``noise_multiplier`` times it to their sum, over a fixed number."""

    noise_multiplier: Sigma = 1.0
    clip: Clip = 1.0

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clip, "whole")
        noise = GaussianNoise(self.noise_multiplier, of=clip, at=Point.AGGREGATE)
        more = settings(clients_per_round=cohort.clients_per_round)
        return [
            clip,
            noise,
            of_filter("tff:gaussian_fixed", self, ("noise_multiplier", "clip"), clip, noise.at, **more),
        ]


@DEFENSES.register("tff:gaussian_adaptive")
@validated_defense
class GaussianAdaptive(Defense):
    """Clips updates to a bound that moves to a quantile of their lengths, with noise by the bound of the clip.

    ``clipped_count_stddev``: noise on the number of updates within the bound; None for a twentieth of the clients, or
    more where that is too little.
    """

    noise_multiplier: Sigma = 1.0
    initial_l2_norm_clip: Clip = 0.1
    target_unclipped_quantile: Annotated[float, Field(ge=0, le=1)] = 0.5
    learning_rate: NonNegative = 0.2
    clipped_count_stddev: Positive | None = None

    def operations(self, cohort: Cohort) -> list[Operation]:
        z, units = self.noise_multiplier, cohort.clients_per_round
        bits = max(0.05 * units, z) if self.clipped_count_stddev is None else self.clipped_count_stddev
        bits = max(bits, 0.5 * z * (1 + 1e-6))
        of_vectors = (z**-2 - (2 * bits) ** -2) ** -0.5 if z else 0.0
        steering = Steering(self.target_unclipped_quantile, self.learning_rate, units, z, of_vectors, bits, held=True)
        own = clip_to_quantile(steering, self.initial_l2_norm_clip)
        names = ("noise_multiplier", "initial_l2_norm_clip", "target_unclipped_quantile", "learning_rate")
        more = settings(clients_per_round=units, clipped_count_stddev=bits)
        return [*own, of_filter("tff:gaussian_adaptive", self, names, own[0], Point.AGGREGATE, **more)]


@DEFENSES.register("pfl:CentrallyAppliedPrivacyMechanism")
@validated_defense
class CentrallyApplied(Defense):
    """Clips updates to ``clipping_bound`` and adds noise of ``relative_noise_stddev`` times it to their sum."""

    clipping_bound: Clip = 1.0
    relative_noise_stddev: Sigma = 1.0

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clipping_bound, "whole")
        noise = GaussianNoise(self.relative_noise_stddev, of=clip, at=Point.AGGREGATE)
        names = ("clipping_bound", "relative_noise_stddev")
        return [clip, noise, of_filter("pfl:CentrallyAppliedPrivacyMechanism", self, names, clip, noise.at)]


@DEFENSES.register("pfl:AdaptiveClippingGaussianMechanism")
@validated_defense
class AdaptiveClipping(Defense):
    """Clips updates to a bound that moves to a quantile of their lengths; update and bit together get the noise.

    ``clipping_indicator_noise_stddev``: noise on the sum of bits of size 1, above ``relative_noise_stddev``; None for a
    tenth of the clients, as pfl recommends, or more where that is too little.
    """

    relative_noise_stddev: Sigma = 1.0
    initial_clipping_bound: Clip = 1.0
    clipping_indicator_noise_stddev: Positive | None = None
    adaptive_clipping_norm_quantile: Annotated[float, Field(ge=0, le=1)] = 0.5
    log_space_step_size: NonNegative = 0.2

    @model_validator(mode="after")
    def _as_pfl_demands(self) -> "AdaptiveClipping":
        noise, bits = self.relative_noise_stddev, self.clipping_indicator_noise_stddev
        if bits is not None and noise >= bits:
            raise ValueError(
                f"clipping_indicator_noise_stddev={bits:g} must be above relative_noise_stddev={noise:g}; raise it"
            )
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        z, units = self.relative_noise_stddev, cohort.clients_per_round
        bits = self.clipping_indicator_noise_stddev or max(0.1 * units, 2 * z, 1e-6)
        of_vectors = (z**-2 - bits**-2) ** -0.5 if z else 0.0
        # Bits of size 1 here, of size 1/2 there.
        steering = Steering(
            self.adaptive_clipping_norm_quantile, self.log_space_step_size, units, z, of_vectors, bits / 2
        )
        own = clip_to_quantile(steering, self.initial_clipping_bound)
        names = (
            "relative_noise_stddev", "initial_clipping_bound", "adaptive_clipping_norm_quantile", "log_space_step_size",
        )  # fmt: skip
        more = settings(clipping_indicator_noise_stddev=bits)
        return [*own, of_filter("pfl:AdaptiveClippingGaussianMechanism", self, names, own[0], Point.AGGREGATE, **more)]
