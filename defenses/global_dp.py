"""Global DP: the server clips whole updates, adds noise to their sum, and stops when the privacy budget is spent.

Source: Geyer, Klein, Nabi 2017, "Differentially Private Federated Learning: A Client Level Perspective".
See docs/defenses.md and docs/accounting.md.
"""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import model_validator
from torch import Tensor

from harness.defenses.median_norm import median_norm, norm_counts
from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.stating import central_statements
from harness.federation.context import RoundContext, State
from harness.federation.defense import Defense, FixedNoise
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.remembered import Remembered
from harness.federation.taps import Hook, Tap
from harness.observation import Clipping
from harness.privacy import Statement, client_views, make_statement, valid_epsilon
from harness.settings.ranges import LEAST_CLIP, MOST, Clip, Delta, Positive, Sigma
from harness.vectors.clipping import clip, noise_deviation


@DEFENSES.register("global_dp", "geyer")
@validated_defense
class GlobalDP(Defense):
    """Clips each update as a whole to S and adds noise of std ``sigma`` * S to the sum.

    ``bound``: S is ``clip`` in all rounds (``fixed``) or the ``median`` norm of the updates of the round before,
    starting at ``clip`` (Geyer takes the same round's, which needs all of a round's updates at once).
    ``epsilon``: training stops before the round that would exceed it at the run's delta, towards a third party or
    another client. With ``max_delta``, epsilon is held fixed and training stops before its delta would exceed
    ``max_delta``, as Geyer does.
    """

    clip: Clip = 4.0
    sigma: Sigma = 6.0
    bound: Literal["fixed", "median"] = "fixed"
    epsilon: Positive | None = None
    max_delta: Delta | None = None

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
        elif self.adapts():
            # Nobody took part.
            context.server.setdefault("bound", total.new_tensor(self.clip))
        return (total + deviation * context.server_gaussian("aggregate", total)) / context.cohort.clients_per_round

    def _bound(self, server: State | None) -> float:
        return float((server or {}).get("bound", self.clip))

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"bound": Remembered(least=LEAST_CLIP, most=MOST)} if self.bound == "median" else {}

    def acts_at(self, hook: Hook) -> bool:
        return hook in (Hook.SERVER_RECEIVE, Hook.AGGREGATE) or (hook == Hook.CLIENT_MESSAGE and self.bound == "median")

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return Clipping(self._bound(server) / learning_rate, "whole", "update") if tap == Tap.RECEIVED else None

    def only_adds(self, hook: Hook) -> bool:
        return hook != Hook.SERVER_RECEIVE or (self.bound == "fixed" and math.isinf(self.clip))

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
        views = [view for view in client_views(facts.clients(self.sigma, "whole")) if view.name != "server"]
        # delta(epsilon) > max_delta exactly when epsilon(max_delta) > epsilon: one search serves both rules.
        spent = [valid_epsilon(view.event, delta)[0] for view in views]
        rounds, known = facts.cohort.rounds, max(math.inf if value is None else value for value in spent)
        if known <= self.epsilon:
            return None
        if self.max_delta is None:
            return f"round {rounds} would spend epsilon {known:.4g} at delta {delta:g}, above {self.epsilon:g}"
        return f"round {rounds} would need a delta above {delta:g} for epsilon {self.epsilon:g}"
