"""Quantile clipping: the bound follows a quantile of the norms, found from privately counted bits.

Sources: Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping"
(clients); Wei et al., "Securing Distributed SGD against Gradient Leakage Threats" (examples). See docs/defenses.md.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.defenses.example_noise import known_noise, sanitise
from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.stating import adaptive_step_statements, central_statements
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.remembered import Remembered
from harness.federation.taps import TAPS_AFTER_SENDING, TAPS_AFTER_STEP, Hook, Tap
from harness.observation import Clipping, Noise
from harness.privacy import GaussianLimit, Limit, NoLimit, Statement
from harness.settings.ranges import LEAST_CLIP, MOST, WITHIN, Clip, NonNegative, Sigma
from harness.vectors.clipping import clip, noise_deviation


@DEFENSES.register("quantile")
@validated_defense
class Quantile(Defense):
    """Clips whole vectors to C, which moves towards the ``quantile`` of their norms at speed ``rate``.

    ``unit``: ``client`` clips updates (C is the server's, noise on the sum at the server), ``example`` clips
    per-example gradients in every local step (C is the client's own and starts anew every round). ``clip`` is the first
    C. Vectors and bits together cost as much as one Gaussian release with multiplier ``sigma``; ``sigma_b`` is the
    noise on the sum of bits, by default max(n/20, sigma) for n expected units.
    """

    unit: Literal["client", "example"] = "client"
    clip: Clip = 4.0
    sigma: Sigma = 6.0
    quantile: Annotated[float, Field(ge=0, le=1)] = 0.5
    rate: NonNegative = 0.2
    sigma_b: Annotated[float, Field(ge=0), WITHIN] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "Quantile":
        noise_deviation(self.sigma, self.clip)
        if self.sigma_b is None:
            return self
        if self.sigma and self.sigma_b <= self.sigma / 2:
            raise ValueError(
                f"sigma_b={self.sigma_b:g} leaves no noise that makes up for the bits; raise it above sigma/2="
                f"{self.sigma / 2:g}, or leave it out for max(n/20, sigma)"
            )
        if math.isinf(self.sigma_b) and self.rate:
            raise ValueError("with sigma_b=inf the bits say nothing; set rate=0 or a finite sigma_b")
        return self

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        if self.unit == "client":
            return LocalStep(per_example.mean())
        norms = per_example.norms()
        whole = norms.square().sum(-1)[..., None].sqrt()
        bound = context.local.get("bound", torch.full_like(whole[:, 0], self.clip))
        factors = (bound[:, None] / whole.clamp_min(1e-30)).clamp(max=1.0).expand_as(norms)
        multiplier, sigma_b = self.multipliers(context.cohort)
        bits = ((whole <= bound[:, None]).to(whole) - 0.5) * per_example.present[..., None]
        if self.rate:
            noisy = bits.sum(1) + sigma_b * context.gaussian("bits", bound)
            context.local["bound"] = self._moved(bound, noisy, context.cohort.batch_size)
        return sanitise(per_example, factors, multiplier * bound if multiplier else 0.0, "sum", context)

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        if self.unit == "example":
            return update
        bound = self._bound(context.server)
        context.sent["bits"] = (update.norm(dim=-1) <= bound).to(update) - 0.5
        return clip(update, bound, context.layout.groups("whole"))

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        count = context.cohort.clients_per_round
        if self.unit == "example":
            return total / count
        bound = context.server.get("bound", total.new_tensor(self.clip))
        multiplier, sigma_b = self.multipliers(context.cohort)
        if self.rate:
            # Noise moves the bound in a round without clients too, or the bound would tell that there were none.
            bits = context.sent.get("bits", torch.zeros_like(bound))
            context.server["bound"] = self._moved(bound, bits + sigma_b * context.server_gaussian("bits", bits), count)
        deviation = noise_deviation(multiplier, float(bound))
        return (total + deviation * context.server_gaussian("aggregate", total)) / count

    def multipliers(self, cohort: Cohort) -> tuple[float, float]:
        """z_D of the noise on the sum of clipped vectors, and sigma_b of that on the sum of bits, each +-1/2."""
        if self.sigma == 0:
            return 0.0, self.sigma_b or 0.0
        units = cohort.clients_per_round if self.unit == "client" else cohort.batch_size
        sigma_b = max(units / 20, self.sigma) if self.sigma_b is None else self.sigma_b
        return (self.sigma**-2 - (2 * sigma_b) ** -2) ** -0.5, sigma_b

    def _moved(self, bound: Tensor, bits: Tensor, units: int) -> Tensor:
        """The next C, from the noisy sum of bits; held where it can be computed with, whatever the data are."""
        return (bound * torch.exp(-self.rate * (bits / units + 0.5 - self.quantile))).clamp(LEAST_CLIP, MOST)

    def acts_at(self, hook: Hook) -> bool:
        return hook in ((Hook.CLIENT_MESSAGE, Hook.AGGREGATE) if self.unit == "client" else (Hook.CLIENT_STEP,))

    def _bound(self, server: State | None) -> float:
        return float((server or {}).get("bound", self.clip))

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"bound": Remembered(least=LEAST_CLIP, most=MOST)} if self.unit == "client" and self.rate > 0 else {}

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        if self.unit == "example":
            return Clipping(self.clip, "whole", "example") if tap in TAPS_AFTER_STEP else None
        clipped = tap in TAPS_AFTER_SENDING
        return Clipping(self._bound(server) / learning_rate, "whole", "update") if clipped else None

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        multiplier, _ = self.multipliers(context.cohort)
        if self.unit == "client" or hook != Hook.CLIENT_STEP or not multiplier:
            return None
        # C is the client's own, and moves by the bits of its examples.
        bound = self.clip if context.local_step == 0 or not self.rate else None
        deviation = None if bound is None else noise_deviation(multiplier, bound)
        return known_noise(deviation, "sum", context.cohort.batch_size)

    def reconstruction_limit(self, hook: Hook, context: RoundContext) -> Limit | NoLimit:
        if self.unit == "client" or hook != Hook.CLIENT_STEP or not self.sigma:
            return super().reconstruction_limit(hook, context)
        # The noisy bits, which move later bounds, cost as much as the vector's noise is larger than sigma.
        return GaussianLimit(1 / (self.sigma * context.noise_scale))

    def units(self) -> str:
        what, where = "per-example gradients", "sum of the batch in every local step"
        if self.unit == "client":
            what, where = "updates (a gradient times the learning rate)", "sum at the server"
        sigma_b = "max(n/20, sigma)" if self.sigma_b is None else f"{self.sigma_b:g}"
        return (
            f"applies to {what}: clipped per whole to C, the {self.quantile:g} quantile of norms, first {self.clip:g}; "
            f"noise std z_D*C on the {where} with sigma={self.sigma:g}, sigma_b={sigma_b}, "
            "z_D=(sigma^-2-(2 sigma_b)^-2)^-1/2"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        multiplier, sigma_b = self.multipliers(facts.cohort)
        why = (
            f"clipped vectors (z_D={multiplier:.4g}) and their bits (sigma_b={sigma_b:.4g}) together cost as much as "
            f"one release with sigma={self.sigma:g}, and C follows noisy bits only"
        )
        stated = central_statements if self.unit == "client" else adaptive_step_statements
        return stated(facts, self.sigma, why)
