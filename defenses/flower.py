"""Flower's differential privacy, by its own names and arguments, and FLIP's filter that is built on it.

Sources: flwr 1.42.0, ``supercore/differential_privacy.py`` (arithmetic), ``clientapp/mod/localdp_mod.py``,
``serverapp/strategy/dp_fixed_clipping.py`` and ``dp_adaptive_clipping.py``; FLIP 362667fa,
``flip-utils/flip/flower/privacy.py``. What they do, their order and their sign are kept; ``corrected`` is beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.base.ranges import LEAST_CLIP, MOST, Clip, Count, Delta, NonNegative, Positive, Sigma
from harness.claims.epsilons import classical_deviation
from harness.defenses.claimed import of_filter, settings
from harness.defenses.quantile import Steering, clip_to_quantile
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipUpdate, GaussianNoise
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.memory import Remembered
from harness.federation.operations import Bookkeeping, Operation
from harness.federation.taps import Point
from harness.observation import Noise


@dataclass(frozen=True)
class ClipArrays(ClipUpdate):
    """Clips updates as a whole, but for arrays without a dimension: these count in the length and stay as they are."""

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return scalars_kept(super().on_rows(rows, context), rows, context)


@dataclass(frozen=True)
class NoiseOnArrays(GaussianNoise):
    """Gaussian noise on all arrays but those without a dimension."""

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return scalars_kept(super().on_rows(rows, context), rows, context)

    def noise(self, context: RoundContext) -> Noise | None:
        return but_scalars(super().noise(context), context)


def scalars_kept(made: Tensor, rows: Tensor, context: RoundContext) -> Tensor:
    """Return what was made of rows (N, P), with the arrays without a dimension as they were."""
    if not (scalars := list(context.layout.scalars)):
        return made
    made = made.clone()
    made[:, scalars] = rows[:, scalars]
    return made


def but_scalars(noise: Noise | None, context: RoundContext) -> Noise | None:
    """Noise of one deviation, where arrays without a dimension carry none."""
    if noise is None or noise.deviation is None or not (scalars := list(context.layout.scalars)):
        return noise
    deviation = torch.full((context.layout.total,), float(noise.deviation))
    deviation[scalars] = 0.0
    return Noise(noise.law, deviation)


@DEFENSES.register("flower:LocalDpMod")
@validated_defense
class LocalDpMod(Defense):
    """Clips the update to ``clipping_norm`` and adds noise of deviation sensitivity sqrt(2 ln(1.25/delta)) / epsilon.

    Flower itself has no defaults.
    """

    clipping_norm: Clip = 1.0
    sensitivity: NonNegative = 2.0
    epsilon: Positive = 8.0
    delta: Delta = 1e-5

    def operations(self, cohort: Cohort) -> list[Operation]:
        deviation = classical_deviation(self.sensitivity, self.epsilon, self.delta)
        clip = ClipArrays(self.clipping_norm, "whole")
        names = ("clipping_norm", "sensitivity", "epsilon", "delta")
        noise = NoiseOnArrays(deviation / self.clipping_norm, of=clip)
        return [clip, noise, of_filter("flower:LocalDpMod", self, names, clip)]


@DEFENSES.register("flip:local_dp")
@validated_defense
class LocalDP(Defense):
    """FLIP's filter of hospital networks: the same clip and formula, from the keys of a run's configuration."""

    dp_enabled: bool = True
    dp_clipping_norm: Clip = 1.0
    dp_sensitivity: NonNegative = 1e-4
    dp_epsilon: Positive = 10.0
    dp_delta: Delta = 1e-5

    def operations(self, cohort: Cohort) -> list[Operation]:
        if not self.dp_enabled:
            return []
        deviation = classical_deviation(self.dp_sensitivity, self.dp_epsilon, self.dp_delta)
        clip = ClipArrays(self.dp_clipping_norm, "whole")
        names = ("dp_enabled", "dp_clipping_norm", "dp_sensitivity", "dp_epsilon", "dp_delta")
        noise = NoiseOnArrays(deviation / self.dp_clipping_norm, of=clip)
        return [clip, noise, of_filter("flip:local_dp", self, names, clip)]


# Central noise: clients or the server clip, and the server adds noise to the mean.


@validated_defense
class FixedClipping(Defense):
    """Fixed clipping: the part that both sides have in common."""

    noise_multiplier: Sigma = 0.2
    clipping_norm: Clip = 10.0
    num_sampled_clients: Count | None = None
    corrected: bool = False

    at: ClassVar[Point]

    def operations(self, cohort: Cohort) -> list[Operation]:
        z = self.noise_multiplier
        if self.corrected:
            plain = ClipUpdate(self.clipping_norm, "whole", at=self.at)
            return [plain, GaussianNoise(z, of=plain, at=Point.AGGREGATE)]
        clip = ClipArrays(self.clipping_norm, "whole", at=self.at)
        typed = self.num_sampled_clients or cohort.clients_per_round
        said = f"noise std z*C/{typed} on the mean at the server with z={z:g}"
        noise = GaussianNoise(z * cohort.clients_per_round / typed, of=clip, at=Point.AGGREGATE, said=said)
        names = ("noise_multiplier", "clipping_norm")
        return [clip, noise, of_filter(self.name, self, names, clip, Point.AGGREGATE, num_sampled_clients=typed)]


@DEFENSES.register("flower:ServerSideFixedClipping")
@validated_defense
class ServerSideFixedClipping(FixedClipping):
    """The server clips every reply and adds noise of ``noise_multiplier`` C / ``num_sampled_clients`` to the mean.

    ``num_sampled_clients``: as it was typed; None for the true number. ``corrected``: by the true number, and arrays
    without a dimension are clipped too. Flower itself has no defaults; these are of its example ``fl-dp-sa``.
    """

    name = "flower:ServerSideFixedClipping"
    at = Point.ARRIVAL


@DEFENSES.register("flower:ClientSideFixedClipping")
@validated_defense
class ClientSideFixedClipping(FixedClipping):
    """Clients clip (``fixedclipping_mod``), and the server adds the same noise; settings as of the server's side."""

    name = "flower:ClientSideFixedClipping"
    at = Point.MESSAGE


@dataclass(frozen=True)
class ClipToFlowersBound(ClipArrays):
    """Clips to a bound that the server moves, and notes of each update whether it was cut; ``bound`` is the first."""

    fixed = False

    @property
    def sends(self) -> tuple[str, ...]:
        return ("bits",)

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        context.sent["bits"] = (rows.norm(dim=-1) > self.now(context.server)).to(rows)
        return super().on_rows(rows, context)

    def now(self, server: State | None) -> float:
        return float((server or {}).get("bound", self.bound))

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"bound": Remembered(least=LEAST_CLIP, most=MOST)}

    def words(self) -> str:
        return f"clipped per whole to C, which moves away from its quantile, first {self.bound:g}"


@dataclass(frozen=True)
class MoveFlowersBound(Bookkeeping):
    """The server's next bound: C exp(-rate (b - target)), where b is the noisy share of updates that were *cut*.

    Andrew et al. 2021 count those that were not: here C runs off to 0 or infinity. ``of`` is the clip.
    """

    rate: float
    target: float
    of_bits: float

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        clip = self.of
        assert isinstance(clip, ClipToFlowersBound)
        bits = context.sent.get("bits", total.new_zeros(()))
        share = (bits + self.of_bits * context.server_gaussian("bits", bits)) / context.cohort.clients_per_round
        bound = context.server.get("bound", total.new_tensor(clip.bound))
        context.server["bound"] = (bound * torch.exp(-self.rate * (share - self.target))).clamp(LEAST_CLIP, MOST)
        return total


@validated_defense
class AdaptiveClipping(Defense):
    """Adaptive clipping: the part that both sides have in common."""

    noise_multiplier: Sigma = 0.2
    num_sampled_clients: Count | None = None
    initial_clipping_norm: Clip = 0.1
    target_clipped_quantile: Annotated[float, Field(ge=0, le=1)] = 0.5
    clip_norm_lr: Positive = 0.2
    clipped_count_stddev: NonNegative | None = None
    corrected: bool = False

    at: ClassVar[Point]

    @model_validator(mode="after")
    def _as_flower_demands(self) -> "AdaptiveClipping":
        z, typed, bits = self.noise_multiplier, self.num_sampled_clients, self.clipped_count_stddev
        bits = typed / 20 if bits is None and typed else bits
        if bits is not None and z and z >= 2 * bits:
            raise ValueError(
                f"noise_multiplier={z:g} must be below twice the noise of the bits, {2 * bits:g}, as Flower demands; "
                "raise num_sampled_clients or clipped_count_stddev"
            )
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        z, first, rate = self.noise_multiplier, self.initial_clipping_norm, self.clip_norm_lr
        target, typed = self.target_clipped_quantile, self.num_sampled_clients or cohort.clients_per_round
        bits = max(typed / 20, z) if self.clipped_count_stddev is None else self.clipped_count_stddev
        of_vectors = (z**-2 - (2 * bits) ** -2) ** -0.5 if z else 0.0
        if self.corrected:
            units = cohort.clients_per_round
            return clip_to_quantile(Steering(1 - target, rate, units, z, of_vectors, bits), first, self.at)
        clip = ClipToFlowersBound(first, "whole", at=self.at)
        said = f"noise std z_D*C/{typed} on the mean at the server, by the next C, with z={z:g}, z_D={of_vectors:.4g}"
        # The bound moves before noise is added, which goes by the new one.
        move = MoveFlowersBound(rate, target, bits, of=clip)
        noise = GaussianNoise(of_vectors * cohort.clients_per_round / typed, of=clip, at=Point.AGGREGATE, said=said)
        names = ("noise_multiplier", "initial_clipping_norm", "target_clipped_quantile", "clip_norm_lr")
        more = settings(num_sampled_clients=typed, clipped_count_stddev=bits)
        return [clip, move, noise, of_filter(self.name, self, names, clip, Point.AGGREGATE, **more)]


@DEFENSES.register("flower:ServerSideAdaptiveClipping")
@validated_defense
class ServerSideAdaptiveClipping(AdaptiveClipping):
    """The server clips to a bound that follows the share of clipped updates, and adds noise by the next bound.

    ``clipped_count_stddev``: noise on their number; None for ``num_sampled_clients`` / 20. ``corrected``: the bound
    moves towards its quantile, and noise goes by the bound of the clip. Flower has no default multiplier.
    """

    name = "flower:ServerSideAdaptiveClipping"
    at = Point.ARRIVAL


@DEFENSES.register("flower:ClientSideAdaptiveClipping")
@validated_defense
class ClientSideAdaptiveClipping(AdaptiveClipping):
    """Clients clip (``adaptiveclipping_mod``) and send in clear whether they did; else as the server's side."""

    name = "flower:ClientSideAdaptiveClipping"
    at = Point.MESSAGE
