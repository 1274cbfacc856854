"""Additive random noise without clipping, on local gradients or on updates.

Source: Zhu et al. 2019, "Deep Leakage from Gradients", section 5.1. See docs/defenses.md.
"""

import math
from typing import Literal

from harness.base.ranges import NonNegative
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import GaussianNoise, LaplaceNoise
from harness.federation.context import Cohort
from harness.federation.defense import Defense
from harness.federation.operations import Operation
from harness.federation.taps import Point

_PLACES = {"example": Point.EXAMPLES, "gradient": Point.STEP, "update": Point.MESSAGE}


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
        return self.amount * (math.sqrt(2) if self.distribution == "laplace" and self.param == "scale" else 1.0)

    def operations(self, cohort: Cohort) -> list[Operation]:
        law = LaplaceNoise if self.distribution == "laplace" else GaussianNoise
        place = _PLACES[self.applies_to]
        said = f"{self.distribution} noise of std {self.deviation:.4g} per coordinate ({self.param}={self.amount:g})"
        return [law(self.deviation, at=place, on_mean=place is Point.STEP, said=said)]
