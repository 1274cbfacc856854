"""Fed-SDP: per-client clipping and Gaussian noise on updates, at the server or at the client.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", section 4 (after McMahan et al. 2018
and Geyer et al. 2017).
"""

import math
from typing import Literal

from pydantic import model_validator
from torch import Tensor

from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense, FixedNoise
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import TAPS_AFTER_SENDING, Hook, Tap
from harness.observation import Clipping, Noise
from harness.privacy import Statement, client_views, make_statement
from harness.settings.ranges import Clip, Sigma
from harness.vectors.clipping import clip, noise_deviation
from harness.vectors.layout import Grouping


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

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        if self.noise_at != "client":
            return update
        return self._noised(self._clipped(update, context), "client_message", context)

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        if self.noise_at == "client":
            return message
        clipped = self._clipped(message, context)
        return clipped if self.noise_at == "aggregate" else self._noised(clipped, "server_receive", context)

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        if self.noise_at == "aggregate":
            total = total + noise_deviation(self.sigma, self.clip) * context.server_gaussian("aggregate", total)
        return total / context.cohort.clients_per_round

    def _clipped(self, update: Tensor, context: RoundContext) -> Tensor:
        return clip(update, self.clip, context.layout.groups(self.clipping))

    def _noised(self, clipped: Tensor, purpose: str, context: RoundContext) -> Tensor:
        return clipped + self._deviation(context.cohort) * context.gaussian(purpose, clipped)

    def _deviation(self, cohort: Cohort) -> float:
        """Standard deviation of the noise on one client's update."""
        share = math.sqrt(cohort.clients_per_round) if self.noise_split == "share" else 1.0
        return noise_deviation(self.sigma, self.clip) / share

    def acts_at(self, hook: Hook) -> bool:
        places = {"client": (Hook.CLIENT_MESSAGE,), "receive": (Hook.SERVER_RECEIVE,)}
        return hook in places.get(self.noise_at, (Hook.SERVER_RECEIVE, Hook.AGGREGATE))

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        clipped_from = TAPS_AFTER_SENDING if self.noise_at == "client" else (Tap.RECEIVED,)
        return Clipping(self.clip / learning_rate, self.clipping, "update") if tap in clipped_from else None

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        places = {"client": Hook.CLIENT_MESSAGE, "receive": Hook.SERVER_RECEIVE}
        deviation = self._deviation(context.cohort)
        return Noise("gaussian", deviation) if deviation and hook == places.get(self.noise_at) else None

    def only_adds(self, hook: Hook) -> bool:
        return not self.acts_at(hook) or hook == Hook.AGGREGATE or math.isinf(self.clip)

    def units(self) -> str:
        amount = "sigma*C" if self.noise_split == "full" or self.noise_at == "aggregate" else "sigma*C/sqrt(K)"
        place = {
            "aggregate": "the sum at the server",
            "receive": "each update on arrival",
            "client": "each update sent",
        }
        return (
            f"applies to updates (a gradient times the learning rate): clipped per {self.clipping} to C={self.clip:g}; "
            f"noise std {amount} on {place[self.noise_at]} with sigma={self.sigma:g}"
        )

    def fixed_noise(self, facts: PrivacyFacts) -> FixedNoise | None:
        if self.sigma == 0 or self.noise_at == "receive":
            return None
        bound = facts.whole_bound(self.clip, self.clipping)
        if self.noise_at == "aggregate":
            return FixedNoise("server", noise_deviation(self.sigma, self.clip), bound)
        return FixedNoise("message", self._deviation(facts.cohort), bound)

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        if self.sigma == 0:
            return [make_statement("server", "none", "clipping without noise gives no epsilon", unit="client")]
        split = "full" if self.noise_at == "aggregate" else self.noise_split
        views = client_views(facts.clients(self.sigma, self.clipping), self.noise_at, split)
        tags = {"server": "client-LDP" if self.noise_at == "client" else "none"}
        return [
            make_statement(
                view.name, tags.get(view.name, "client-DP central"), view.note, actual=view.event,
                claimed=facts.claimed_for_clients(self.sigma), delta=facts.delta, unit="client",
                schedule=f"sigma={self.sigma:g}",
            )
            for view in views
        ]  # fmt: skip
