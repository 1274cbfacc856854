"""Fed-CDP: per-example clipping with a fixed bound and fixed Gaussian noise at every local step.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", sections 4 and 5.
"""

from pydantic import model_validator

from harness.base.ranges import Clip, Sigma
from harness.base.vectors import Grouping, noise_deviation
from harness.defenses.conventions import Convention, acting_at, in_words
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipExamples, GaussianNoise
from harness.federation.context import Cohort
from harness.federation.defense import Defense
from harness.federation.operations import Operation


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

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipExamples(self.clip, self.clipping)
        said = f"{in_words(self.convention)} with sigma={self.sigma:g}, S=C"
        return [clip, GaussianNoise(self.sigma, of=clip, said=said, **acting_at(self.convention))]
