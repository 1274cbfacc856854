"""SecAgg + DDP: noise shared among the clients, of whose local training the server sees nothing but the sum.

Source: Heikkilä et al., "On Using Secure Aggregation in Differentially Private Federated Learning with Multiple
Local Steps" (S000), algorithm 1, Theorems 4.6 and 4.7. Aggregation: Bonawitz et al. 2017, in :mod:`harness.secagg`.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.ranges import Clip, Count, CountOrNone, Positive, Sigma
from harness.base.vectors import example_factors
from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.secagg_clients import Counts, Differences, Factors, noise_statements, toss_statements
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState
from harness.federation.privacy_facts import NO_NOISE, PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Clipping, Noise
from harness.privacy import (
    GaussianLimit,
    Limit,
    NoLimit,
    PoissonBinomialSum,
    RenyiLimit,
    Statement,
    skellam_sum,
    without_guarantee,
)
from harness.secagg import FixedPoint, Gaussian, PoissonBinomial, SkellamGrid, numbers, padded
from harness.secagg.simulate import Key, Mechanism, SumSettings, build_mechanism, sum_integers, sum_reals

_INTEGERS = "integers"
_ROUNDING = 1e-3  # of 32-bit floats over many steps, at most
_UNKNOWN_PARAMETERS = 10**7  # more coordinates cost more
_CERTAIN = 0.01  # of a standard deviation, which may follow the data so far and still be called known
_SILENT = 1e-3  # below, noise is as good as off and coin tosses would be too many to draw


@dataclass(frozen=True)
class NoisyStep(Operation):
    """Each client's clipped, noisy sum of a batch, in every local step; ``settings`` are the defense's."""

    settings: "SecAggDDP"

    points = (Point.STEP,)
    clips = noises = True

    def on_step(self, state: StepState, context: RoundContext) -> None:
        if self.settings.mechanism == "gaussian":
            return self._gaussian_step(state, context)
        state.clip(self.settings.clip, "whole")
        examples, batch = state.examples, context.cohort.batch_size
        mechanism = self.settings.shared_mechanism(context, context.keys[0])
        gradients = examples.materialise()
        clients = zip(gradients, examples.present, context.keys, strict=True)
        sums = np.stack([self._noisy(rows[present], key, context) for rows, present, key in clients])
        integers = torch.from_numpy(sums).to(gradients.device)
        context.local[_INTEGERS] = context.local.get(_INTEGERS, torch.zeros_like(integers)) + integers
        state.direction = torch.from_numpy(self._decoded(sums, context) / batch).to(gradients)
        state.louder(mechanism.deviation / batch)

    def _gaussian_step(self, state: StepState, context: RoundContext) -> None:
        norms, batch = state.norms, context.cohort.batch_size
        clips, noises, lengths = self.settings.differences.rows(context, norms)
        state.factors = example_factors(norms / clips[:, :, None], self.settings.clip, "whole")
        total = state.examples.weighted_sum(state.factors)
        # The context's noise follows its scale by itself.
        widths = noises * self.settings.shared_mechanism(replace(context, noise_scale=1.0), context.keys[0]).deviation
        noisy = total + widths * context.gaussian("client_step", total)
        deviations = (lengths * widths)[:, 0] * context.noise_scale / batch
        state.direction = lengths * noisy / batch
        state.louder(deviations)

    def _noisy(self, rows: Tensor, key: Key, context: RoundContext) -> np.ndarray:
        """One client's noisy integers (d,) from its examples' gradients (b, P)."""
        stream = numbers("noise", *key, context.round, context.local_step, f"{context.scope}client_step")
        return self.settings.shared_mechanism(context, key).encode(rows.double().cpu().numpy(), stream)

    def _decoded(self, sums: np.ndarray, context: RoundContext) -> np.ndarray:
        return np.stack(
            [
                self.settings.shared_mechanism(context, key).decode(row)
                for row, key in zip(sums, context.keys, strict=True)
            ]
        )

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return Clipping(None if self.settings.differences else self.settings.clip, "whole", "example")

    def grid(self, context: RoundContext, steps: int) -> float | None:
        if self.settings.mechanism != "skellam" or self.settings.mode != "strict_grid" or self.settings.rotation:
            return None
        mechanism = self.settings.shared_mechanism(context, context.keys[0])
        assert isinstance(mechanism, SkellamGrid)
        return 1 / (mechanism.scale * context.cohort.batch_size * steps)

    def noise(self, context: RoundContext) -> Noise | None:
        least, most, share = self.settings.levels(context)
        if not least or share == 0:
            return None
        if share is None or most > least * (1 + _CERTAIN):
            return Noise(self.settings.mechanism, None)
        return Noise(self.settings.mechanism, share * (least + most) / 2 / context.cohort.batch_size)

    def limit(self, context: RoundContext) -> Limit | NoLimit:
        mechanism = self.settings.shared_mechanism(context, context.keys[0])
        return message_limit(mechanism, self.settings.differences, context.cohort)

    def words(self) -> str:
        own = self.settings
        missing = own.colluders + own.dropouts
        noise = (
            f"{own.mechanism} noise std sigma*C on the sum of all clients' sums with sigma={own.sigma:g}, of which "
            f"each client adds 1/sqrt(K{f'-{missing}' if missing else ''})"
        )
        tosses = f"{own.trials} coin tosses per coordinate and example (Poisson-binomial, theta={own.theta:g})"
        how = "integers" if own.mode == "strict_grid" else "updates in fixed point"
        real = "masked vectors and their sum" if own.protocol != "sum" else "the sum (added without the protocol)"
        return (
            f"clipped per whole to C={own.clip:g}; in every local step "
            f"{tosses if own.mechanism == 'poisson_binomial' else noise}; the server gets {real}, of {how} modulo "
            f"2^{own.bits}; surface 0 is the mean over a round's K clients{own.differences.units()}"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        dimension = facts.parameters or _UNKNOWN_PARAMETERS
        # Accounting needs the length of rotated vectors, not the rotation.
        mechanism = build_mechanism(
            replace(self.settings.sum_settings(), rotation=False), facts.cohort.clients_per_round,
            padded(dimension) if self.settings.rotation else dimension, ("statement",), facts.cohort.batch_size,
            facts.cohort.steps_per_round,
        )  # fmt: skip
        away = self.settings.colluders + self.settings.dropouts
        if isinstance(mechanism, PoissonBinomial):
            made = toss_statements(mechanism, facts, away, self.settings.mode)
        else:
            made = noise_statements(mechanism, facts, away, self.settings.mode, self.settings.differences)
        if facts.holders == 1:
            return made
        shared = f"up to {facts.holders} clients hold one example, which no noise of a secure sum is made for"
        return [one if one.guarantee == "none" else without_guarantee(one, shared) for one in made]


@dataclass(frozen=True)
class SecureSum(Operation):
    """The secure sum of what clients encoded, which is all that the server gets; ``of`` is what they encoded it by."""

    settings: "SecAggDDP"

    points = (Point.SUM,)
    silent = True

    @property
    def only_adds(self) -> bool:
        return True

    def on_messages(self, messages: Tensor, context: RoundContext) -> Tensor:
        settings = self._of_those_who_came(len(messages), context)
        key = ("secure sum", *context.keys[0], context.round)
        if self.settings.mode == "paper":
            total, _ = sum_reals(messages.cpu().numpy(), self.settings.largest_coordinate(context), settings, key)
            return torch.from_numpy(total).to(messages)
        integers, mechanism = (
            context.local[_INTEGERS].cpu().numpy(),
            self.settings.shared_mechanism(context, context.keys[0]),
        )
        applied = -context.learning_rate / context.cohort.batch_size
        _require_plain_sums(messages, torch.from_numpy(applied * mechanism.decode(integers)).to(messages))
        total, _ = sum_integers(integers, settings, key)
        return torch.from_numpy(applied * mechanism.decode(total)).to(messages)

    def noise(self, context: RoundContext) -> Noise | None:
        least, _, share = self.settings.levels(context)
        return None if not least or share == 0 else self._rounded(least, context)

    def _rounded(self, deviation: float, context: RoundContext) -> Noise | None:
        """Return what is known of a rounding to fixed point after noise of that deviation; None where it is nothing to
        it."""
        if self.settings.mode == "strict_grid":
            return None
        cohort = context.cohort
        encoding = FixedPoint.fitting(
            self.settings.bits, self.settings.largest_coordinate(context), cohort.clients_per_round
        )
        on_update = context.learning_rate * deviation * context.noise_scale / cohort.batch_size
        together = math.hypot(on_update, 1 / (encoding.scale * math.sqrt(12)))
        return Noise("unknown", None) if together > on_update * (1 + _CERTAIN) else None

    def limit(self, context: RoundContext) -> Limit | NoLimit | None:
        settings = self.settings
        if settings.mode != "strict_grid":
            return None
        counted = context.cohort.clients_per_round - settings.colluders - settings.dropouts
        return sum_limit(settings.shared_mechanism(context, context.keys[0]), counted)

    def _of_those_who_came(self, came: int, context: RoundContext) -> SumSettings:
        """The settings of the aggregation.

        Raises:
            UsageError: fewer clients sent something than the noise was calibrated for.
        """
        needed = max(2, context.cohort.clients_per_round - self.settings.dropouts)
        if came < needed:
            raise UsageError(
                f"{came} clients are there for a secure sum, {needed} are needed for its noise and its threshold; "
                "raise clients_per_round, or dropouts, or let a fixed number of clients take part"
            )
        return replace(self.settings.sum_settings(context.noise_scale), dropouts=came - needed)


@DEFENSES.register("secagg_ddp")
@validated_defense
class SecAggDDP(Defense):
    """Clips each example's gradient to ``clip``; all clients' noise together has std ``sigma`` * C in every local step.

    Each client adds 1/sqrt(K - ``colluders`` - ``dropouts``) of it, K clients per round. ``mechanism``: ``skellam``,
    ``gaussian`` or ``poisson_binomial`` (``trials`` coin tosses per coordinate of bias ``theta`` instead of sigma).
    ``mode``: ``strict_grid`` adds up noisy integers in the ring of 2^``bits`` and applies the learning rate after
    aggregation, as the proofs assume; ``paper`` sends updates rounded to fixed point, with ``largest`` bounding a
    coordinate. ``protocol``: ``real`` runs secure aggregation, ``sum`` adds in the ring, with the same result to the
    bit. ``degree``, ``threshold``: of the protocol. ``deviations``: how many of the sum half the ring holds.
    ``clips``, ``noises``, ``learning_rates`` (factors of the common value, to clients in turn) and ``local_steps``
    (how many of a round's each takes) make clients differ, where all take part and noise is Gaussian.
    """

    clip: Clip = 4.0
    sigma: Sigma = 1.4
    mechanism: Literal["skellam", "gaussian", "poisson_binomial"] = "skellam"
    mode: Literal["strict_grid", "paper"] = "strict_grid"
    bits: Annotated[int, Field(ge=2, le=62)] = 32
    colluders: CountOrNone = 0
    dropouts: CountOrNone = 0
    degree: Annotated[int, Field(ge=2)] | None = None
    threshold: Annotated[int, Field(ge=2)] | None = None
    rotation: bool = True
    deviations: Positive = 7.0
    largest: Positive | None = None
    trials: Count = 64
    theta: Annotated[float, Field(gt=0, le=0.25)] = 0.25
    protocol: Literal["semi_honest", "real", "sum"] = "real"
    clips: Factors = ()
    noises: Factors = ()
    learning_rates: Factors = ()
    local_steps: Counts = ()

    @model_validator(mode="after")
    def _lies_on_its_grid(self) -> "SecAggDDP":
        if self.mechanism == "gaussian" and self.mode == "strict_grid":
            raise ValueError("Gaussian noise lies on no grid; use mode=paper, or mechanism=skellam")
        if self.clip == math.inf:
            raise ValueError("an infinite clip fits no ring; use a finite clip")
        if self.differences and self.mechanism != "gaussian":
            raise ValueError("clients that differ share no grid; use mechanism=gaussian and mode=paper")
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        step = NoisyStep(self)
        return [step, SecureSum(self, of=step)]

    @property
    def differences(self) -> Differences:
        """Between clients."""
        return Differences(self.clips, self.noises, self.learning_rates, self.local_steps)

    def levels(self, context: RoundContext) -> tuple[float, float, float | None]:
        """The least and the most deviation of one client's noise, and times which of it the client's own is."""
        least, most = (level / context.noise_scale for level in self.shared_mechanism(context, context.keys[0]).levels)
        return least, most, self.differences.noise_share(context) if self.differences else 1.0

    def sum_settings(self, scale: float = 1.0) -> SumSettings:
        """The noisy sum with a ``scale`` times as strong noise."""
        plain = SumSettings(
            self.clip, self.sigma * scale, self.mechanism, self.mode, self.bits, self.colluders, self.dropouts,
            self.degree, self.threshold, self.deviations, self.rotation, self.trials, self.theta,
            protocol=self.protocol,
        )  # fmt: skip
        if self.mechanism != "poisson_binomial" or scale == 1:
            return plain
        if scale < _SILENT:
            return replace(plain, tossed=False)
        if scale > 1:
            return replace(plain, theta=self.theta / scale)
        return replace(plain, trials=round(self.trials / scale**2))

    def shared_mechanism(self, context: RoundContext, key: Key) -> Mechanism:
        """Return what all clients of a seed and round share, from one client's key."""
        cohort = context.cohort
        return _shared(self.sum_settings(context.noise_scale), cohort, context.layout.total, (key[0], context.round))

    def largest_coordinate(self, context: RoundContext) -> float:
        """Bound of a coordinate of an update: full steps in one direction and ten deviations of the noise."""
        if self.largest is not None:
            return self.largest * max(1.0, context.noise_scale)
        steps, batch = context.cohort.steps_per_round, context.cohort.batch_size
        noise = 10 * self.shared_mechanism(context, context.keys[0]).deviation * steps**0.5 / batch
        return context.learning_rate * (2 * steps * self.clip + noise) * self.differences.largest()


def message_limit(mechanism: Mechanism, differences: Differences, cohort: Cohort) -> Limit | NoLimit:
    """Return the limit of one client's noisy local step, for the client with the least noise for its clip;
    ``mechanism`` is that of each."""
    if not isinstance(mechanism, Gaussian):
        return sum_limit(mechanism, 1)
    if mechanism.noise == 0:
        return NoLimit(NO_NOISE)
    own = (differences.of(client, cohort) for client in range(cohort.clients))
    return GaussianLimit(max(clip / noise for clip, noise, *_ in own) / mechanism.noise)


def sum_limit(mechanism: Mechanism, counted: int) -> Limit | NoLimit:
    """Return the limit of the sum of integers in which so many clients' noise counts, the example's own among them."""
    if isinstance(mechanism, PoissonBinomial):
        tosses = PoissonBinomialSum(counted * mechanism.slots, mechanism.trials, mechanism.theta, mechanism.length)
        return RenyiLimit(tosses)
    if isinstance(mechanism, Gaussian) or mechanism.noise == 0:
        return NoLimit(NO_NOISE)
    return RenyiLimit(skellam_sum(mechanism, counted))


def _require_plain_sums(messages: Tensor, expected: Tensor) -> None:
    """Raises:
    UsageError: updates (N, P) are not what the clients' noisy integers add up to.
    """
    if (messages - expected).norm() > _ROUNDING * expected.norm():
        raise UsageError(
            "updates are not the plain sums of their noisy steps, as with momentum, so integers cannot stand for them; "
            "use mode=paper"
        )


@lru_cache(maxsize=64)
def _shared(settings: SumSettings, cohort: Cohort, dimension: int, key: Key) -> Mechanism:
    return build_mechanism(
        settings, cohort.clients_per_round, dimension, key, cohort.batch_size, cohort.steps_per_round
    )
