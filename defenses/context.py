"""Where in training a hook is called, and the memory a defense may keep: one round, one client, or the server."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from harness.defenses.scoped_state import ScopedState
from harness.layout import Layout
from harness.randomness import laplace_rows, normal_rows, uniform_rows

State = MutableMapping[str, Tensor]


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
    """Where in training the hooks are called, and what a defense may remember.

    Attributes:
        round, local_step: both from 0.
        learning_rate: of local SGD.
        cohort: the federation's facts.
        layout: slices of the flat vectors.
        keys: one random key per client, (seed, client, ...).
        noise_scale: multiplies every noise draw (controls use 0 and 100).
        local: per client (N, ...), for the local steps of this round; empty when a round begins.
        client: per client (N, ...), kept from one participation to the next; empty, or zero, at the first.
        server: of the server, kept between rounds and known to all clients; empty in round 0.
        sent: per client (N, ...), what goes to the server beside the update; in ``aggregate`` the sums over clients.
        scope: name of this defense within a stack.
    """

    round: int
    local_step: int
    learning_rate: float
    cohort: Cohort
    layout: Layout
    keys: tuple[tuple[int | str, ...], ...]
    noise_scale: float = 1.0
    local: State = field(default_factory=dict)
    client: State = field(default_factory=dict)
    server: State = field(default_factory=dict)
    sent: State = field(default_factory=dict)
    scope: str = ""

    @property
    def clients(self) -> list[int]:
        """Number of each row's client in the federation; a victim on its own stands for the client of its number."""
        return [int(key[key.index("client") + 1] if "client" in key else key[1]) for key in self.keys]

    def part(self, name: str) -> "RoundContext":
        """The context of one part of a stack: its own memory and its own noise streams."""
        prefix = f"{name}."
        return replace(
            self,
            local=ScopedState(self.local, prefix),
            client=ScopedState(self.client, prefix),
            server=ScopedState(self.server, prefix),
            sent=ScopedState(self.sent, prefix),
            scope=self.scope + prefix,
        )

    def gaussian(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal noise in the shape of ``like`` (N, ...), one stream per (client, round, step, purpose)."""
        if self.noise_scale == 0:
            return like.new_zeros(like.shape)
        return normal_rows(self._streams("noise", purpose), tuple(like.shape[1:]), like) * self.noise_scale

    def laplace(self, purpose: str, like: Tensor) -> Tensor:
        """Laplace noise of scale 1 (standard deviation sqrt 2), otherwise as :meth:`gaussian`."""
        if self.noise_scale == 0:
            return like.new_zeros(like.shape)
        return laplace_rows(self._streams("laplace noise", purpose), tuple(like.shape[1:]), like) * self.noise_scale

    def uniform(self, purpose: str, like: Tensor) -> Tensor:
        """Numbers in [0, 1) to choose by, otherwise as :meth:`gaussian`; a choice is no noise and is never scaled."""
        return uniform_rows(self._streams("choice", purpose), tuple(like.shape[1:]), like)

    def server_gaussian(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal noise in the shape of ``like``, one stream per (seed, round, purpose) whoever takes part."""
        key = ("server noise", self.keys[0][0], self.round, self.scope + purpose)
        return normal_rows([key], tuple(like.shape), like)[0] * self.noise_scale

    def _streams(self, kind: str, purpose: str) -> list[tuple[int | str, ...]]:
        return [(kind, *key, self.round, self.local_step, self.scope + purpose) for key in self.keys]
