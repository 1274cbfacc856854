"""SecAgg + DDP: noise shared among the clients, of whose local training the server sees nothing but the sum.

Source: Heikkilä et al., "On Using Secure Aggregation in Differentially Private Federated Learning with Multiple
Local Steps" (S000), algorithm 1, Theorems 4.6 and 4.7. Aggregation: Bonawitz et al. 2017, in :mod:`harness.secagg`.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.defenses.registry import DEFENSES, validated_defense
from harness.defenses.secagg_clients import Counts, Differences, Factors
from harness.defenses.secagg_limits import message_limit, sum_limit
from harness.defenses.secagg_statements import noise_statements, toss_statements
from harness.errors import UsageError
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.secure_sum import Key, Mechanism, SumSettings, build_mechanism, sum_integers, sum_reals
from harness.federation.taps import TAPS_AFTER_STEP, Hook, Tap
from harness.mechanisms import FixedPoint, PoissonBinomial, SkellamGrid, numbers, padded
from harness.observation import Clipping, Noise
from harness.privacy import Limit, NoLimit, Statement, without_guarantee
from harness.settings.ranges import Clip, Count, CountOrNone, Positive, Sigma
from harness.vectors.clipping import example_factors

_INTEGERS = "integers"
_ROUNDING = 1e-3  # of 32-bit floats over many steps, at most
_UNKNOWN_PARAMETERS = 10**7  # more coordinates cost more
_CERTAIN = 0.01  # of a standard deviation, which may follow the data so far and still be called known
_SILENT = 1e-3  # below, noise is as good as off and coin tosses would be too many to draw


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
        if self._differences and self.mechanism != "gaussian":
            raise ValueError("clients that differ share no grid; use mechanism=gaussian and mode=paper")
        return self

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        if self.mechanism == "gaussian":
            return self._gaussian_step(per_example, context)
        factors, batch = example_factors(per_example.norms(), self.clip, "whole"), context.cohort.batch_size
        mechanism = self._mechanism(context, context.keys[0])
        gradients = per_example.materialise()
        clients = zip(gradients, per_example.present, context.keys, strict=True)
        sums = np.stack([self._noisy(rows[present], key, context) for rows, present, key in clients])
        integers = torch.from_numpy(sums).to(gradients.device)
        context.local[_INTEGERS] = context.local.get(_INTEGERS, torch.zeros_like(integers)) + integers
        step = torch.from_numpy(self._decoded(sums, context) / batch).to(gradients)
        return LocalStep(step, factors, noise=mechanism.deviation / batch)

    def _gaussian_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        norms, batch = per_example.norms(), context.cohort.batch_size
        clips, noises, lengths = self._differences.rows(context, norms)
        factors = example_factors(norms / clips[:, :, None], self.clip, "whole")
        total = per_example.weighted_sum(factors)
        # The context's noise follows its scale by itself.
        widths = noises * self._mechanism(replace(context, noise_scale=1.0), context.keys[0]).deviation
        noisy = total + widths * context.gaussian("client_step", total)
        deviations = (lengths * widths)[:, 0] * context.noise_scale / batch
        return LocalStep(lengths * noisy / batch, factors, noise=deviations)

    def sum_securely(self, messages: Tensor, context: RoundContext) -> Tensor:
        settings = self._of_those_who_came(len(messages), context)
        key = ("secure sum", *context.keys[0], context.round)
        if self.mode == "paper":
            total, _ = sum_reals(messages.cpu().numpy(), self._largest(context), settings, key)
            return torch.from_numpy(total).to(messages)
        integers, mechanism = context.local[_INTEGERS].cpu().numpy(), self._mechanism(context, context.keys[0])
        applied = -context.learning_rate / context.cohort.batch_size
        _require_plain_sums(messages, torch.from_numpy(applied * mechanism.decode(integers)).to(messages))
        total, _ = sum_integers(integers, settings, key)
        return torch.from_numpy(applied * mechanism.decode(total)).to(messages)

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        if tap not in TAPS_AFTER_STEP:
            return None
        return Clipping(None if self._differences else self.clip, "whole", "example")

    def grid_of(self, tap: Tap, context: RoundContext, steps: int) -> float | None:
        if self.mechanism != "skellam" or self.mode != "strict_grid" or self.rotation or tap not in TAPS_AFTER_STEP:
            return None
        mechanism = self._mechanism(context, context.keys[0])
        assert isinstance(mechanism, SkellamGrid)
        return 1 / (mechanism.scale * context.cohort.batch_size * steps)

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        least, most = (level / context.noise_scale for level in self._mechanism(context, context.keys[0]).levels)
        share = self._differences.noise_share(context) if self._differences else 1.0
        if not least or share == 0:
            return None
        if hook == Hook.SUM_SECURELY:
            return self._rounded(least, context)
        if hook != Hook.CLIENT_STEP:
            return None
        if share is None or most > least * (1 + _CERTAIN):
            return Noise(self.mechanism, None)
        return Noise(self.mechanism, share * (least + most) / 2 / context.cohort.batch_size)

    def _rounded(self, deviation: float, context: RoundContext) -> Noise | None:
        """What is known of a rounding to fixed point after noise of that deviation; None where it is nothing to it."""
        if self.mode == "strict_grid":
            return None
        cohort = context.cohort
        encoding = FixedPoint.fitting(self.bits, self._largest(context), cohort.clients_per_round)
        on_update = context.learning_rate * deviation * context.noise_scale / cohort.batch_size
        together = math.hypot(on_update, 1 / (encoding.scale * math.sqrt(12)))
        return Noise("unknown", None) if together > on_update * (1 + _CERTAIN) else None

    def reconstruction_limit(self, hook: Hook, context: RoundContext) -> Limit | NoLimit:
        mechanism = self._mechanism(context, context.keys[0])
        if hook == Hook.CLIENT_STEP:
            return message_limit(mechanism, self._differences, context.cohort)
        if hook == Hook.SUM_SECURELY and self.mode == "strict_grid":
            return sum_limit(mechanism, context.cohort.clients_per_round - self.colluders - self.dropouts)
        return super().reconstruction_limit(hook, context)

    def only_adds(self, hook: Hook) -> bool:
        return hook == Hook.SUM_SECURELY or not self.acts_at(hook)

    def units(self) -> str:
        missing = self.colluders + self.dropouts
        noise = (
            f"{self.mechanism} noise std sigma*C on the sum of all clients' sums with sigma={self.sigma:g}, of which "
            f"each client adds 1/sqrt(K{f'-{missing}' if missing else ''})"
        )
        tosses = f"{self.trials} coin tosses per coordinate and example (Poisson-binomial, theta={self.theta:g})"
        how = "integers" if self.mode == "strict_grid" else "updates in fixed point"
        real = "masked vectors and their sum" if self.protocol != "sum" else "the sum (added without the protocol)"
        return (
            f"applies to per-example gradients: clipped per whole to C={self.clip:g}; in every local step "
            f"{tosses if self.mechanism == 'poisson_binomial' else noise}; the server gets {real}, of {how} modulo "
            f"2^{self.bits}; surface 0 is the mean over a round's K clients{self._differences.units()}"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        dimension = facts.parameters or _UNKNOWN_PARAMETERS
        # Accounting needs the length of rotated vectors, not the rotation.
        mechanism = build_mechanism(
            replace(self._settings(), rotation=False), facts.cohort.clients_per_round,
            padded(dimension) if self.rotation else dimension, ("statement",), facts.cohort.batch_size,
            facts.cohort.steps_per_round,
        )  # fmt: skip
        away = self.colluders + self.dropouts
        if isinstance(mechanism, PoissonBinomial):
            made = toss_statements(mechanism, facts, away, self.mode)
        else:
            made = noise_statements(mechanism, facts, away, self.mode, self._differences)
        if facts.holders == 1:
            return made
        shared = f"up to {facts.holders} clients hold one example, which no noise of a secure sum is made for"
        return [one if one.guarantee == "none" else without_guarantee(one, shared) for one in made]

    @property
    def _differences(self) -> Differences:
        return Differences(self.clips, self.noises, self.learning_rates, self.local_steps)

    def _settings(self, scale: float = 1.0) -> SumSettings:
        """The noisy sum with a ``scale`` times as strong noise."""
        plain = SumSettings(
            self.clip, self.sigma * scale, self.mechanism, self.mode, self.bits, self.colluders, self.dropouts,
            self.degree, self.threshold, self.deviations, self.rotation, self.largest, self.trials, self.theta,
            protocol=self.protocol,
        )  # fmt: skip
        if self.mechanism != "poisson_binomial" or scale == 1:
            return plain
        if scale < _SILENT:
            return replace(plain, tossed=False)
        if scale > 1:
            return replace(plain, theta=self.theta / scale)
        return replace(plain, trials=round(self.trials / scale**2))

    def _mechanism(self, context: RoundContext, key: Key) -> Mechanism:
        """What all clients of a seed and round share, from one client's key."""
        cohort = context.cohort
        return _shared(self._settings(context.noise_scale), cohort, context.layout.total, (key[0], context.round))

    def _noisy(self, rows: Tensor, key: Key, context: RoundContext) -> np.ndarray:
        """One client's noisy integers (d,) from its examples' gradients (b, P)."""
        stream = numbers("noise", *key, context.round, context.local_step, f"{context.scope}client_step")
        return self._mechanism(context, key).encode(rows.double().cpu().numpy(), stream)

    def _decoded(self, sums: np.ndarray, context: RoundContext) -> np.ndarray:
        return np.stack(
            [self._mechanism(context, key).decode(row) for row, key in zip(sums, context.keys, strict=True)]
        )

    def _of_those_who_came(self, came: int, context: RoundContext) -> SumSettings:
        """The settings of the aggregation.

        Raises:
            UsageError: fewer clients sent something than the noise was calibrated for.
        """
        needed = max(2, context.cohort.clients_per_round - self.dropouts)
        if came < needed:
            raise UsageError(
                f"{came} clients are there for a secure sum, {needed} are needed for its noise and its threshold; "
                "raise clients_per_round, or dropouts, or let a fixed number of clients take part"
            )
        return replace(self._settings(context.noise_scale), dropouts=came - needed)

    def _largest(self, context: RoundContext) -> float:
        """Bound of a coordinate of an update: full steps in one direction and ten deviations of the noise."""
        if self.largest is not None:
            return self.largest * max(1.0, context.noise_scale)
        steps, batch = context.cohort.steps_per_round, context.cohort.batch_size
        noise = 10 * self._mechanism(context, context.keys[0]).deviation * steps**0.5 / batch
        return context.learning_rate * (2 * steps * self.clip + noise) * self._differences.largest()


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
