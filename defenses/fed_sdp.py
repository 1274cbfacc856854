"""Fed-SDP: per-client clipping and Gaussian noise on updates, at the server or at the client.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", section 4 (after McMahan et al. 2018
and Geyer et al. 2017).
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import Tensor

from harness.clipping import clip, noise_deviation
from harness.defenses.hooks import Defense, Guarantee, RoundContext
from harness.defenses.registry import DEFENSES, validated_defense
from harness.layout import Grouping
from harness.surfaces import Clipping


@DEFENSES.register("fed_sdp")
@validated_defense
class FedSDP(Defense):
    """Clips each client's update to ``clip`` and adds noise of std ``sigma`` * ``clip``.

    ``noise_at``: ``aggregate`` (server, on the sum, as released), ``receive`` (server, on each client's update as it
    arrives, the reading the paper's Table III needs) or ``client`` (before sending). ``noise_split`` applies to the
    last two: every client's noise is the ``full`` sigma*C or a ``share`` sigma*C/sqrt(K) of it, K clients per round.
    """

    clip: Annotated[float, Field(gt=0)] = 4.0
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 6.0
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

    def aggregate(self, messages: Tensor, context: RoundContext) -> Tensor:
        total = messages.sum(0)
        if self.noise_at == "aggregate":
            total = total + noise_deviation(self.sigma, self.clip) * context.server_gaussian("aggregate", total)
        return total / context.cohort.clients_per_round

    def _clipped(self, update: Tensor, context: RoundContext) -> Tensor:
        return clip(update, self.clip, context.layout.groups(self.clipping))

    def _noised(self, clipped: Tensor, purpose: str, context: RoundContext) -> Tensor:
        share = math.sqrt(context.cohort.clients_per_round) if self.noise_split == "share" else 1.0
        return clipped + noise_deviation(self.sigma, self.clip) / share * context.gaussian(purpose, clipped)

    def clipping_at(self, tap: str, learning_rate: float) -> Clipping | None:
        clipped_from = ("T1.out", "T0.in", "T0.post") if self.noise_at == "client" else ("T0.post",)
        return Clipping(self.clip / learning_rate, self.clipping, "update") if tap in clipped_from else None

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

    def guarantees(self) -> list[Guarantee]:
        if self.sigma == 0:
            return [Guarantee("server", "none", "client", None, "clipping without noise gives no epsilon")]
        if self.noise_at != "client":
            return [
                Guarantee("server", "none", "client", None, "the server receives raw updates (T0.in)"),
                Guarantee(
                    "third party", "client-DP central", "client", "add/remove",
                    "covers the published model only, for Poisson-sampled clients",
                ),
            ]  # fmt: skip
        if self.noise_split == "full":
            note = "holds for each participation of a client, without amplification by sampling"
        else:
            note = "each message carries only a 1/sqrt(K) share of the noise; the full multiplier holds for the sum"
        return [Guarantee("server", "client-LDP", "client", "add/remove", note)]
