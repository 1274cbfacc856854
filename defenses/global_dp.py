"""Global DP: the server clips whole updates, adds noise to their sum, and stops when the privacy budget is spent.

Source: Geyer, Klein, Nabi 2017, "Differentially Private Federated Learning: A Client Level Perspective".
Spec: defenses, section 11; accounting, section 14.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import Tensor

from harness.clipping import clip, noise_deviation
from harness.defenses.context import RoundContext, State
from harness.defenses.fixed_noise import FixedNoise
from harness.defenses.hooks import Defense
from harness.defenses.median_norm import median_norm, norm_counts
from harness.defenses.privacy_facts import PrivacyFacts
from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.stating import central_statements
from harness.privacy import Statement, client_views, make_statement, valid_epsilon
from harness.surfaces import Clipping


@DEFENSES.register("global_dp", "geyer")
@validated_defense
class GlobalDP(Defense):
    """Clips each update as a whole to S and adds noise of std ``sigma`` * S to the sum.

    ``bound``: S is ``clip`` in all rounds (``fixed``) or the ``median`` norm of the updates of the round before,
    starting at ``clip`` (Geyer takes the same round's, which needs all of a round's updates at once).
    ``epsilon``: training stops before the round that would exceed it at the run's delta. With ``max_delta``, epsilon
    is held fixed and training stops before its delta would exceed ``max_delta``, as Geyer does.
    """

    clip: Annotated[float, Field(gt=0)] = 4.0
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 6.0
    bound: Literal["fixed", "median"] = "fixed"
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_delta: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "GlobalDP":
        noise_deviation(self.sigma, self.clip)
        if self.max_delta is not None and self.epsilon is None:
            raise ValueError("max_delta is the delta of a fixed epsilon; add for example epsilon=8")
        if self.epsilon is not None and self.sigma == 0:
            raise ValueError("without noise the budget is spent at once; raise sigma or drop epsilon")
        return self

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        if self.bound == "median":
            context.sent["norms"] = norm_counts(update)
        return update

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        return clip(message, self._bound(context.server), context.layout.groups("whole"))

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        deviation = noise_deviation(self.sigma, self._bound(context.server))
        if "norms" in context.sent:
            context.server["bound"] = median_norm(context.sent["norms"])
        return (total + deviation * context.server_gaussian("aggregate", total)) / context.cohort.clients_per_round

    def _bound(self, server: State | None) -> float:
        return float((server or {}).get("bound", self.clip))

    def adapts(self) -> bool:
        return self.bound == "median"

    def acts_at(self, hook: str) -> bool:
        return hook in ("server_receive", "aggregate") or (hook == "client_message" and self.bound == "median")

    def clipping_at(self, tap: str, learning_rate: float, server: State | None = None) -> Clipping | None:
        return Clipping(self._bound(server) / learning_rate, "whole", "update") if tap == "T0.post" else None

    def units(self) -> str:
        size = f"S={self.clip:g}" if self.bound == "fixed" else f"S=median norm of the last round, first {self.clip:g}"
        return (
            f"applies to updates (a gradient times the learning rate): clipped per whole to {size}; "
            f"noise std sigma*S on the sum at the server with sigma={self.sigma:g}"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        if self.bound == "fixed":
            return central_statements(facts, self.sigma, "whole updates clipped to a fixed S")
        why = "S is the median of private norms and is not itself protected; the epsilon of a fixed S is nominal only"
        claimed = facts.claimed_for_clients(self.sigma) if self.sigma else None
        return [
            make_statement(
                "server", "none", why, claimed=claimed, delta=facts.delta, unit="client",
                schedule=f"sigma={self.sigma:g}",
            )
        ]  # fmt: skip

    def fixed_noise(self, facts: PrivacyFacts) -> FixedNoise | None:
        if self.sigma == 0 or self.bound != "fixed":
            return None
        return FixedNoise("server", noise_deviation(self.sigma, self.clip), self.clip)

    def finished(self, facts: PrivacyFacts) -> str | None:
        if self.epsilon is None:
            return None
        delta = facts.delta if self.max_delta is None else self.max_delta
        event = client_views(facts.clients(self.sigma, "whole"))[0].event
        # delta(epsilon) > max_delta exactly when epsilon(max_delta) > epsilon: one search serves both rules.
        spent = valid_epsilon(event, delta)[0]
        if spent is not None and spent <= self.epsilon:
            return None
        rounds, known = facts.cohort.rounds, math.inf if spent is None else spent
        if self.max_delta is None:
            return f"round {rounds} would spend epsilon {known:.4g} at delta {delta:g}, above {self.epsilon:g}"
        return f"round {rounds} would need a delta above {delta:g} for epsilon {self.epsilon:g}"
