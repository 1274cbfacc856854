"""Fed-αCDP: Fed-CDP whose noise follows the observed largest per-example norm (l2-max sensitivity), with decaying σ.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", section 5 and Algorithm 1.
"""

from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from harness.defenses.example_noise import CONVENTION_TEXT, Convention, known_noise, sanitise
from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.schedules import NoiseSchedule, Policy, Space
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import TAPS_AFTER_STEP, Hook, Tap
from harness.noise_level import NoiseLevel
from harness.observation import Clipping, Noise
from harness.privacy import Statement, make_statement
from harness.settings.ranges import Clip, Count, NonNegative, Positive, Sigma
from harness.vectors.clipping import example_factors
from harness.vectors.layout import Grouping, group_sums

SensitivityReading = Literal["example_max", "batch_max", "example_mean"]

_CODE_RANGE = (0.1, 32.0)


@DEFENSES.register("fed_acdp", "fed_alphacdp")
@validated_defense
class FedAlphaCDP(Defense):
    """Noise of std sigma * S, where S is read from the batch itself.

    ``s_mode``: ``example_max`` (text: largest clipped per-example per-tensor norm), ``batch_max`` (Algorithm 1: largest
    per-tensor norm of the averaged gradient), ``example_mean`` (released code: mean over examples of each one's largest
    norm, held in [0.1, 32], and no clipping at all). ``policy`` other than ``fixed`` is the paper's Fed-αCDP[σ].
    ``sigma`` is the multiplier of the fixed policy and sigma_0 of the others in sigma space.
    """

    clip: Clip = 4.0
    sigma: Sigma | None = None
    convention: Convention = "sum"
    clipping: Grouping = "layer"
    s_mode: SensitivityReading = "example_max"
    policy: Policy = "fixed"
    schedule: Space = "eps"
    sigma_end: Positive = 4.85
    cycles: Count = 4
    floor: NonNegative = 1e-6

    @model_validator(mode="after")
    def _sigma_belongs_to_the_policy(self) -> "FedAlphaCDP":
        fixes_sigma = self.policy not in ("fixed", "cyclic") and self.schedule == "eps"
        if fixes_sigma and self.sigma is not None:
            raise ValueError(f"policy {self.policy} in eps space fixes sigma; drop sigma or use schedule=sigma")
        decays = self.policy != "fixed" and not fixes_sigma
        if decays and self._sigma_start < self.sigma_end:
            raise ValueError(f"sigma={self._sigma_start:g} starts below sigma_end={self.sigma_end:g}; raise sigma")
        return self

    @property
    def _sigma_start(self) -> float:
        return self.sigma if self.sigma is not None else (6.0 if self.policy == "fixed" else 15.0)

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        norms = per_example.norms()
        factors = torch.ones_like(norms)
        if self.s_mode != "example_mean":
            factors = example_factors(norms, self.clip, self.clipping)
        sensitivity = self._sensitivity(per_example, norms, factors, context)
        return sanitise(per_example, factors, self._sigma(context) * sensitivity, self.convention, context)

    def _sensitivity(
        self, per_example: ExampleGradients, norms: Tensor, factors: Tensor, context: RoundContext
    ) -> Tensor:
        """S per client (N, 1)."""
        if self.s_mode == "example_mean":
            held = norms.amax(-1).clamp(*_CODE_RANGE) * per_example.present
            count = per_example.present.sum(-1, keepdim=True).clamp(min=1)
            return (held.sum(-1, keepdim=True) / count).clamp(min=_CODE_RANGE[0])
        if self.s_mode == "example_max":
            largest = (norms * factors).flatten(1).amax(-1, keepdim=True)
        else:
            mean = per_example.weighted_sum(factors) / context.cohort.batch_size
            largest = group_sums(mean.square(), per_example.sizes).sqrt().amax(-1, keepdim=True)
        return largest.clamp(min=self.floor, max=self.clip)

    def _schedule(self, cohort: Cohort) -> NoiseSchedule:
        return NoiseSchedule(
            self.policy,
            self.schedule,
            self._sigma_start,
            self.sigma_end,
            cohort.rounds,
            cohort.steps_per_round,
            self.cycles,
        )

    def needs_planned_rounds(self) -> str | None:
        return None if self.policy == "fixed" else f"the decay of sigma (policy={self.policy})"

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        if self.s_mode == "example_mean" or tap not in TAPS_AFTER_STEP:
            return None
        return Clipping(self.clip, self.clipping, "example")

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        if hook != Hook.CLIENT_STEP or not self._sigma_start:
            return None
        if self._level_is_open:
            return self._of_open_level(context)
        return known_noise(self._sigma(context) * self.clip, self.convention, context.cohort.batch_size)

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        if not self._sigma_start or self.convention != "per_example":
            return None
        return (
            self._of_open_level(context) if self._level_is_open else Noise("gaussian", self._sigma(context) * self.clip)
        )

    @property
    def _level_is_open(self) -> bool:
        """Whether the settings leave S a choice; it is never published."""
        return self.s_mode == "example_mean" or self.floor < self.clip

    def _of_open_level(self, context: RoundContext) -> Noise:
        """Of one example alone S is known from its gradient, in every reading of it."""
        if context.cohort.batch_size > 1:
            return Noise("gaussian", None)
        held = _CODE_RANGE if self.s_mode == "example_mean" else (self.floor, self.clip)
        return Noise("gaussian", None, level=NoiseLevel(self._sigma(context), "largest", *held))

    def _sigma(self, context: RoundContext) -> float:
        return self._schedule(context.cohort).sigma(context.round, context.local_step)

    def units(self) -> str:
        clipped = "not clipped (released code)"
        if self.s_mode != "example_mean":
            clipped = f"clipped per {self.clipping} to C={self.clip:g}"
        return (
            f"applies to per-example gradients: {clipped}; {CONVENTION_TEXT[self.convention]} "
            f"with {self._sigma_text()}, S={self.s_mode} of the batch"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        why = (
            "the noise scale S is computed from the private batch and is not itself protected, so the output can "
            "reveal it; the paper's epsilon is nominal only"
        )
        sigmas = self._sigmas(facts)
        claimed = facts.claimed_for_examples(sigmas) if min(sigmas) > 0 else None
        return [
            make_statement(
                "server", "none", why, claimed=claimed, delta=facts.delta, unit="example", schedule=self._sigma_text()
            )
        ]

    def _sigmas(self, facts: PrivacyFacts) -> list[float]:
        """One multiplier for all local steps, or one for each of the rounds accounted for."""
        if self.policy == "fixed":
            return [self._sigma_start]
        schedule, cohort = self._schedule(facts.planned), facts.cohort
        return [schedule.sigma(now, step) for now in range(cohort.rounds) for step in range(cohort.steps_per_round)]

    def _sigma_text(self) -> str:
        if self.policy == "fixed":
            return f"sigma={self._sigma_start:g}"
        return f"sigma by policy {self.policy} ({'sigma' if self.policy == 'cyclic' else self.schedule} space)"
