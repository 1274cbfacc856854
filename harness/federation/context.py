"""Place in training where operations run, and the memory a defense may keep: one round, one client, or the server."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from harness.base.randomness import laplace_rows, normal_rows, uniform_rows
from harness.base.vectors import Layout
from harness.federation.examples import NetworkBatch

State = MutableMapping[str, Tensor]


@dataclass(frozen=True)
class ScopedState(MutableMapping[str, Tensor]):
    """One part's own view of a memory that a whole stack of defenses shares: what is named ``prefix`` and something."""

    shared: MutableMapping[str, Tensor]
    prefix: str

    def __getitem__(self, name: str) -> Tensor:
        return self.shared[self.prefix + name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.shared[self.prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self.shared[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in list(self.shared) if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
    """The place in training where operations run, and the memory of a defense.

    Attributes:
        round, local_step: both from 0.
        learning_rate: of local SGD.
        cohort: the federation's facts.
        layout: slices of the flat vectors.
        keys: one random key per row, (seed, client, ...); a seed may be secret, so that no text shows them.
        clients: each row's client in the federation, by number; empty where nobody needs to know.
        noise_scale: multiplies every noise draw (controls use 0 and 100).
        local: per client (N, ...), for the local steps of this round; empty when a round begins.
        client: per client (N, ...), kept from one participation to the next; empty, or zero, at the first.
        server: of the server, kept between rounds and known to all clients; empty in round 0.
        sent: per client (N, ...), what goes to the server beside the update; in ``aggregate`` the sums over clients.
        scope: name of this defense within a stack.
        batch: the network and the examples of a local step, for operations that ask for them.
        step_sizes: (L,) examples in each local step; empty where all are as many as the cohort's batches.
        plans: a defense's operations by cohort, made once for all steps of a round.
    """

    round: int
    local_step: int
    learning_rate: float
    cohort: Cohort
    layout: Layout
    keys: tuple[tuple[int | str, ...], ...] = field(repr=False)
    noise_scale: float = 1.0
    local: State = field(default_factory=dict)
    client: State = field(default_factory=dict)
    server: State = field(default_factory=dict)
    sent: State = field(default_factory=dict)
    scope: str = ""
    clients: tuple[int, ...] = ()
    batch: NetworkBatch | None = None
    step_sizes: tuple[int, ...] = ()
    plans: dict[Cohort, tuple[object, Any]] = field(default_factory=dict, repr=False, compare=False)

    def at_step(self, step: int) -> "RoundContext":
        """Return the same place in a local step, counted from 0."""
        size = self.step_sizes[step] if self.step_sizes else self.cohort.batch_size
        return replace(self, local_step=step, cohort=replace(self.cohort, batch_size=size))

    def quiet(self) -> "RoundContext":
        """Return the same place without noise; what an operation remembers there is forgotten afterwards."""
        local, client, server = dict(self.local), dict(self.client), dict(self.server)
        return replace(self, noise_scale=0.0, local=local, client=client, server=server, sent={})

    def rows(self, rows: slice) -> "RoundContext":
        """Return the context for some of the rows; the others do not see what these remember or send."""
        local, client, sent = (
            {name: values[rows] for name, values in state.items()} for state in (self.local, self.client, self.sent)
        )
        return replace(self, keys=self.keys[rows], clients=self.clients[rows], local=local, client=client, sent=sent)

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
        return self._scaled(normal_rows(self._streams("noise", purpose), tuple(like.shape[1:]), like))

    def laplace(self, purpose: str, like: Tensor) -> Tensor:
        """Laplace noise of scale 1 (standard deviation sqrt 2), otherwise as :meth:`gaussian`."""
        if self.noise_scale == 0:
            return like.new_zeros(like.shape)
        return self._scaled(laplace_rows(self._streams("laplace noise", purpose), tuple(like.shape[1:]), like))

    def uniform(self, purpose: str, like: Tensor) -> Tensor:
        """Numbers of 53 bits in [0, 1) to choose by, as float64; a choice is no noise and is never scaled."""
        return uniform_rows(self._streams("choice", purpose), tuple(like.shape[1:]), like)

    def server_gaussian(self, purpose: str, like: Tensor) -> Tensor:
        """Standard normal noise in the shape of ``like``, one stream per (seed, round, purpose) whoever takes part."""
        key = ("server noise", self.keys[0][0], self.round, self.scope + purpose)
        return self._scaled(normal_rows([key], tuple(like.shape), like)[0])

    def _scaled(self, noise: Tensor) -> Tensor:
        return noise if self.noise_scale == 1 else noise.mul_(self.noise_scale)

    def _streams(self, kind: str, purpose: str) -> list[tuple[int | str, ...]]:
        return [(kind, *key, self.round, self.local_step, self.scope + purpose) for key in self.keys]
