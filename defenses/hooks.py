"""The points of a client's round at which a defense can act.

Every hook is the identity (or the plain mean) by default; a defense overrides only the points it changes. All hooks
are batched over the client axis N: messages are (N, P), per-example gradients (N, B, P).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from harness.layout import Layout, group_sums, spread
from harness.randomness import normal_rows
from harness.surfaces import Clipping


@dataclass(frozen=True)
class Cohort:
    """Facts about the federation, from settings and never from a tensor's shape."""

    clients: int = 100
    clients_per_round: int = 10
    rounds: int = 100
    steps_per_round: int = 100
    batch_size: int = 1


@dataclass(frozen=True)
class RoundContext:
    """Where in training the hooks are called. ``noise_scale`` multiplies every noise draw (controls use 0 and 100)."""

    round: int
    local_step: int
    learning_rate: float
    cohort: Cohort
    layout: Layout
    keys: tuple[tuple[int | str, ...], ...]
    noise_scale: float = 1.0

    def gaussian(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal noise in the shape of ``like`` (N, ...), one stream per (client, round, step, purpose)."""
        if self.noise_scale == 0:
            return like.new_zeros(like.shape)
        keys = [("noise", *key, self.round, self.local_step, purpose) for key in self.keys]
        return normal_rows(keys, tuple(like.shape[1:]), like) * self.noise_scale

    def server_gaussian(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal noise in the shape of ``like``, one stream per (seed, round, purpose) whoever takes part."""
        key = ("server noise", self.keys[0][0], self.round, purpose)
        return normal_rows([key], tuple(like.shape), like)[0] * self.noise_scale


@dataclass
class PerExample:
    """Per-example gradients (N, B, P) of one local step, materialised only when something asks for them."""

    compute: Callable[[], Tensor] = field(repr=False)
    sizes: tuple[int, ...]

    @cached_property
    def _gradients(self) -> Tensor:
        return self.compute()

    def materialise(self) -> Tensor:
        """The gradients (N, B, P)."""
        return self._gradients

    def norms(self) -> Tensor:
        """L2 norms (N, B, M) of each example's gradient per parameter tensor."""
        return group_sums(self._gradients.square(), self.sizes).sqrt()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over the batch of gradients scaled by ``factors`` (N, B, M): (N, P)."""
        return (self._gradients * spread(factors, self.sizes)).sum(1)

    def mean(self) -> Tensor:
        """The plain batch gradient (N, P)."""
        return self._gradients.mean(1)


@dataclass(frozen=True)
class LocalStep:
    """Result of a local step: what SGD consumes, and what else exists in the client's memory.

    Attributes:
        step: (N, P), what SGD consumes.
        clip_factors: (N, B, M), the factor applied to each example's gradient per tensor; None without clipping.
        examples: (N, B, P), sanitised per-example gradients where noise is added per example, else None.
    """

    step: Tensor
    clip_factors: Tensor | None = None
    examples: Tensor | None = None


@dataclass(frozen=True)
class Guarantee:
    """The privacy statement of a defense for one view (spec: defenses, section 17)."""

    view: str
    guarantee: str
    unit: str | None
    adjacency: str | None
    notes: str


@validated(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Defense:
    """Base of every defense: a frozen record of hyper-parameters with hooks at fixed points."""

    name: ClassVar[str] = "abstract"

    def client_step(self, per_example: PerExample, context: RoundContext) -> LocalStep:
        """Turns per-example gradients into what local SGD consumes (taps T2.clip, T2.examples, T2.step)."""
        return LocalStep(per_example.mean())

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        """Transforms the client's update (N, P) before it leaves the client (tap T1.out)."""
        return update

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        """Transforms each client's message (N, P) at the server (tap T0.post)."""
        return message

    def aggregate(self, messages: Tensor, context: RoundContext) -> Tensor:
        """The server's aggregate (P,) of one round's messages (K, P)."""
        return messages.sum(0) / context.cohort.clients_per_round

    def clipping_at(self, tap: str, learning_rate: float) -> Clipping | None:
        """The clipping an adversary at ``tap`` knows to have been applied, in gradient units; None without."""
        return None

    def sparse_at(self, tap: str) -> bool:
        """Whether an adversary at ``tap`` knows that coordinates were left out, with zeros in their place."""
        return False

    def units(self) -> str:
        """One sentence naming what clipping and noise apply to, in which units and by which convention."""
        return "no clipping, no noise"

    def guarantees(self) -> list[Guarantee]:
        """One privacy statement per view."""
        nothing = "nothing is clipped and no calibrated noise is added, so no epsilon exists"
        return [Guarantee("server", "none", None, None, nothing)]

    def parameters(self) -> dict[str, Any]:
        """Every hyper-parameter by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
