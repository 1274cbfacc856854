"""Fed-SDP: per-client clipping and Gaussian noise on updates, at the server or at the client.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", section 4 (after McMahan et al. 2018
and Geyer et al. 2017).
"""

from typing import Literal

from pydantic import model_validator

from harness.base.ranges import Clip, Sigma
from harness.base.vectors import Grouping, noise_deviation
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipUpdate, GaussianNoise
from harness.federation.context import Cohort
from harness.federation.defense import Defense
from harness.federation.operations import Operation
from harness.federation.taps import Point

_PLACES = {"aggregate": Point.AGGREGATE, "receive": Point.ARRIVAL, "client": Point.MESSAGE}


@DEFENSES.register("fed_sdp")
@validated_defense
class FedSDP(Defense):
    """Clips each client's update to ``clip`` and adds noise of std ``sigma`` * ``clip``.

    ``noise_at``: ``aggregate`` (server, on the sum, as released), ``receive`` (server, on each client's update as it
    arrives, the reading the paper's Table III needs) or ``client`` (before sending). ``noise_split`` applies to the
    last two: every client's noise is the ``full`` sigma*C or a ``share`` sigma*C/sqrt(K) of it, K clients per round.
    """

    clip: Clip = 4.0
    sigma: Sigma = 6.0
    noise_at: Literal["aggregate", "receive", "client"] = "aggregate"
    noise_split: Literal["full", "share"] = "full"
    clipping: Grouping = "layer"

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> "FedSDP":
        noise_deviation(self.sigma, self.clip)
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clip, self.clipping, at=Point.MESSAGE if self.noise_at == "client" else Point.ARRIVAL)
        shared = self.noise_split == "share" and self.noise_at != "aggregate"
        return [clip, GaussianNoise(self.sigma, of=clip, at=_PLACES[self.noise_at], shared=shared)]
