"""Quantile clipping: the bound follows a quantile of the norms, found from privately counted bits.

Sources: Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping"
(clients); Wei et al., "Securing Distributed SGD against Gradient Leakage Threats" (examples). See docs/defenses.md.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.base.ranges import LEAST_CLIP, MOST, WITHIN, Clip, NonNegative, Sigma
from harness.base.vectors import noise_deviation
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import AnyClip, ClipUpdate, GaussianNoise
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.memory import Remembered
from harness.federation.operations import Bookkeeping, Operation, StepState
from harness.federation.taps import Point
from harness.observation import Clipping
from harness.privacy import GaussianLimit, Limit


@dataclass(frozen=True)
class Steering:
    """Movement of the bound C towards a quantile of norms, by the noisy sum of bits that say who lies below it.

    Attributes:
        quantile, rate: where to, and how fast. units: how many bits are expected.
        sigma: multiplier that vectors and bits together cost as much as. of_vectors: z_D, of the noise on the sum of
            clipped vectors. of_bits: sigma_b, on the sum of bits, each +-1/2.
        held: whether a noisy share of bits below 0 or above 1 counts as 0 or 1.
    """

    quantile: float
    rate: float
    units: int
    sigma: float
    of_vectors: float
    of_bits: float
    held: bool = False

    def moved(self, bound: Tensor, bits: Tensor) -> Tensor:
        """The next C, from the noisy sum of bits; held where it can be computed with, whatever the data are."""
        share = bits / self.units + 0.5
        change = torch.exp(-self.rate * ((share.clamp(0, 1) if self.held else share) - self.quantile))
        return (bound * change).clamp(LEAST_CLIP, MOST)

    @property
    def why(self) -> str:
        """Return what a guarantee rests on."""
        return (
            f"clipped vectors (z_D={self.of_vectors:.4g}) and their bits (sigma_b={self.of_bits:.4g}) together cost as "
            f"much as one release with sigma={self.sigma:g}, and C follows noisy bits only"
        )


@dataclass(frozen=True)
class ClipToQuantile(AnyClip):
    """The base of clips to a C that is steered; ``bound`` is the first."""

    _: KW_ONLY
    steering: Steering

    fixed = False

    def counted(self, sigma: float) -> float:
        return self.steering.sigma

    @property
    def why(self) -> str:
        return self.steering.why

    def words(self) -> str:
        return f"clipped per whole to C, the {self.steering.quantile:g} quantile of norms, first {self.bound:g}"


@dataclass(frozen=True)
class ClipExamplesToQuantile(ClipToQuantile):
    """Clips example gradients to a C of the client's own, which starts anew every round."""

    unit = "example"
    uneven = "with a bound of each client's own"
    points = (Point.EXAMPLES,)

    def on_step(self, state: StepState, context: RoundContext) -> None:
        norms = state.norms
        whole = norms.square().sum(-1)[..., None].sqrt()
        bound = context.local.get("bound", torch.full_like(whole[:, 0], self.bound))
        state.scale((bound[:, None] / whole.clamp_min(1e-30)).clamp(max=1.0).expand_as(norms))
        state.bounds = bound
        if self.steering.rate:
            bits = ((whole <= bound[:, None]).to(whole) - 0.5) * state.examples.present[..., None]
            noisy = bits.sum(1) + self.steering.of_bits * context.gaussian("bits", bound)
            context.local["bound"] = self.steering.moved(bound, noisy)

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return Clipping(self.bound, "whole", "example")

    def known(self, context: RoundContext) -> float | None:
        # C is the client's own, and moves by the bits of its examples.
        return self.bound if context.local_step == 0 or not self.steering.rate else None

    def limit(self, context: RoundContext) -> Limit | None:
        # The noisy bits, which move later bounds, cost as much as the vector's noise is larger than sigma.
        return GaussianLimit(1 / (self.steering.sigma * context.noise_scale)) if self.steering.sigma else None


@dataclass(frozen=True)
class ClipUpdatesToQuantile(ClipToQuantile, ClipUpdate):
    """Clips updates to the server's C, and sends a bit beside each: whether its norm lies below."""

    points = (Point.MESSAGE, Point.ARRIVAL)

    @property
    def sends(self) -> tuple[str, ...]:
        return ("bits",)

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        context.sent["bits"] = (rows.norm(dim=-1) <= self.now(context.server)).to(rows) - 0.5
        return super().on_rows(rows, context)

    def now(self, server: State | None) -> float:
        return float((server or {}).get("bound", self.bound))

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"bound": Remembered(least=LEAST_CLIP, most=MOST)} if self.steering.rate > 0 else {}


@dataclass(frozen=True)
class MoveQuantile(Bookkeeping):
    """The server's next C, from a round's bits; ``of`` is the clip that goes by it."""

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        clip = self.of
        assert isinstance(clip, ClipToQuantile)
        if clip.steering.rate:
            bound = context.server.get("bound", total.new_tensor(clip.bound))
            # Noise moves the bound in a round without clients too, or the bound would tell that there were none.
            bits = context.sent.get("bits", torch.zeros_like(bound))
            noisy = bits + clip.steering.of_bits * context.server_gaussian("bits", bits)
            context.server["bound"] = clip.steering.moved(bound, noisy)
        return total


def clip_to_quantile(steering: Steering, first: float, at: Point = Point.MESSAGE, said: str = "") -> list[Operation]:
    """Updates clipped to a C that moves from ``first`` on, and noise by it at the server."""
    clip = ClipUpdatesToQuantile(first, "whole", steering=steering, at=at)
    noise = GaussianNoise(steering.of_vectors, of=clip, at=Point.AGGREGATE, said=said)
    return [clip, noise, MoveQuantile(of=clip)]


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

    def operations(self, cohort: Cohort) -> list[Operation]:
        units = cohort.clients_per_round if self.unit == "client" else cohort.batch_size
        steering = Steering(self.quantile, self.rate, units, self.sigma, *self._multipliers(units))
        sigma_b = "max(n/20, sigma)" if self.sigma_b is None else f"{self.sigma_b:g}"
        where = "sum at the server" if self.unit == "client" else "sum of the batch in every local step"
        said = (
            f"noise std z_D*C on the {where} with sigma={self.sigma:g}, sigma_b={sigma_b}, "
            "z_D=(sigma^-2-(2 sigma_b)^-2)^-1/2"
        )
        if self.unit == "example":
            each = ClipExamplesToQuantile(self.clip, "whole", steering=steering)
            return [each, GaussianNoise(steering.of_vectors, of=each, said=said)]
        return clip_to_quantile(steering, self.clip, said=said)

    def _multipliers(self, units: int) -> tuple[float, float]:
        """z_D of the noise on the sum of clipped vectors, and sigma_b of that on the sum of bits."""
        if self.sigma == 0:
            return 0.0, self.sigma_b or 0.0
        sigma_b = max(units / 20, self.sigma) if self.sigma_b is None else self.sigma_b
        return (self.sigma**-2 - (2 * sigma_b) ** -2) ** -0.5, sigma_b
