"""Fed-αCDP: Fed-CDP whose noise follows the observed largest per-example norm (l2-max sensitivity), with decaying σ.

Source: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", section 5 and Algorithm 1.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from harness.base.ranges import Clip, Count, NonNegative, Positive, Sigma
from harness.base.vectors import Grouping, group_sums
from harness.defenses.conventions import Convention, acting_at, in_words
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import AnyClip, ClipExamples, GaussianNoise
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Clipping, Noise, NoiseLevel
from harness.privacy import Event
from harness.privacy.schedules import NoiseSchedule, Policy, Space

SensitivityReading = Literal["example_max", "batch_max", "example_mean"]

_CODE_RANGE = (0.1, 32.0)


@dataclass(frozen=True)
class ReadSensitivity(AnyClip):
    """S of each client, from its own batch, by which the noise after it is scaled; it is never published.

    ``reading`` is :class:`FedAlphaCDP`'s ``s_mode``. What ``of`` clipped to ``bound`` is at least ``floor``.
    """

    reading: SensitivityReading = "example_max"
    floor: float = 0.0

    unit = "example"
    fixed = False
    points = (Point.EXAMPLES,)

    def on_step(self, state: StepState, context: RoundContext) -> None:
        norms = state.norms
        if state.factors is None:
            state.scale(torch.ones_like(norms))
        state.bounds = self._read(state, norms)

    def _read(self, state: StepState, norms: Tensor) -> Tensor:
        """S per client (N, 1)."""
        present = state.examples.present
        if self.reading == "example_mean":
            held = norms.amax(-1).clamp(*_CODE_RANGE) * present
            return (held.sum(-1, keepdim=True) / present.sum(-1, keepdim=True).clamp(min=1)).clamp(min=_CODE_RANGE[0])
        if self.reading == "example_max":
            largest = norms.flatten(1).amax(-1, keepdim=True)
        else:
            largest = group_sums(state.mean().square(), state.examples.sizes).sqrt().amax(-1, keepdim=True)
        return largest.clamp(min=self.floor, max=self.bound)

    @property
    def only_adds(self) -> bool:
        return True

    def known(self, context: RoundContext) -> float | None:
        return self.bound if self.of is not None and self.floor >= self.bound else None

    def open_noise(self, sigma: float, context: RoundContext) -> Noise:
        """Return Gaussian noise of ``sigma`` times S. S is known of one example alone, from its gradient, in every
        reading of it."""
        if context.cohort.batch_size > 1:
            return Noise("gaussian", None)
        held = _CODE_RANGE if self.reading == "example_mean" else (self.floor, self.bound)
        return Noise("gaussian", None, level=NoiseLevel(sigma, "largest", *held))

    def bounds(self, learning_rate: float, server: State) -> Clipping | None:
        return None if self.of is None else self.of.clipping(learning_rate, server)

    @property
    def flaw(self) -> str:
        return (
            "the noise scale S is computed from the private batch and is not itself protected, so the output can "
            "reveal it; the paper's epsilon is nominal only"
        )

    def words(self) -> str:
        return "not clipped (released code)" if self.of is None else ""


@dataclass(frozen=True)
class DecayingNoise(GaussianNoise):
    """Noise whose multiplier follows a schedule over the rounds; ``level`` is the one that it starts from."""

    _: KW_ONLY
    decay: NoiseSchedule

    steady = False

    def sigma(self, context: RoundContext) -> float:
        return self._over(context.cohort).sigma(context.round, context.local_step)

    def _over(self, cohort: Cohort) -> NoiseSchedule:
        return self.decay.over(cohort.rounds, cohort.steps_per_round)

    @property
    def planned(self) -> str | None:
        return None if self.decay.policy == "fixed" else f"the decay of sigma (policy={self.decay.policy})"

    def claimed(self, facts: PrivacyFacts) -> Event | None:
        """By one multiplier for all local steps, or one for each of the rounds accounted for."""
        cohort, schedule, sigmas = facts.cohort, self._over(facts.planned), [self.level]
        if self.decay.policy != "fixed":
            steps = range(cohort.steps_per_round)
            sigmas = [schedule.sigma(now, step) for now in range(cohort.rounds) for step in steps]
        return facts.claimed_for_examples(sigmas) if min(sigmas) > 0 else None

    def schedule(self) -> str:
        return self.decay.words()


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

    def operations(self, cohort: Cohort) -> list[Operation]:
        start = self._sigma_start
        decay = NoiseSchedule(
            self.policy, self.schedule, start, self.sigma_end, cohort.rounds, cohort.steps_per_round, self.cycles
        )
        clip = None if self.s_mode == "example_mean" else ClipExamples(self.clip, self.clipping)
        read = ReadSensitivity(self.clip, self.clipping, self.s_mode, self.floor, of=clip)
        said = f"{in_words(self.convention)} with {decay.words()}, S={self.s_mode} of the batch"
        noise = DecayingNoise(start, of=read, decay=decay, said=said, **acting_at(self.convention))
        return [one for one in (clip, read, noise) if one is not None]
