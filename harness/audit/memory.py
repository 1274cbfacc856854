"""What a defense remembers while an audit plays its rounds, and the end of a round at the server."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.defenses import Cohort, Defense, RoundContext, State
from harness.layout import Layout

_CHUNK = 256


def chunks(count: int) -> Iterator[slice]:
    """Rows that are played together; bounds memory and changes no number."""
    yield from (slice(first, min(first + _CHUNK, count)) for first in range(0, count, _CHUNK))


def quiet(context: RoundContext) -> RoundContext:
    """The same place in training without noise, where what a hook remembers is forgotten afterwards."""
    return replace(
        context, noise_scale=0.0, local=dict(context.local), client=dict(context.client), server=dict(context.server),
        sent={},
    )  # fmt: skip


@dataclass
class Memory:
    """The server's and the clients' memory of one audited federation.

    ``stream`` names its random streams; ``clients`` maps the first number of a chunk of clients to what they keep
    between rounds.
    """

    defense: Defense
    learning_rate: float
    cohort: Cohort
    layout: Layout
    stream: str
    noise_scale: float
    server: State = field(default_factory=dict)
    clients: dict[int, State] = field(default_factory=dict)

    def context(self, now: int, first: int, count: int) -> RoundContext:
        """The beginning of round ``now`` for ``count`` clients from number ``first``."""
        keys = tuple((self.stream, client) for client in range(first, first + count))
        return RoundContext(
            now, 0, self.learning_rate, self.cohort, self.layout, keys, self.noise_scale,
            client=self.clients.setdefault(first, {}), server=self.server,
        )  # fmt: skip


class ServerRound:
    """One round's messages, summed as they arrive."""

    def __init__(self, memory: Memory, now: int) -> None:
        self._memory, self._context = memory, memory.context(now, 0, 1)
        self._total = torch.zeros(memory.layout.total, dtype=torch.float64)
        self._sent: State = {}

    def receive(self, update: Tensor, context: RoundContext, present: Tensor, reporting: Tensor) -> Tensor:
        """Takes clients' updates in.

        Args:
            update: (N, P).
            context: of these clients.
            present: (N,), who takes part.
            reporting: (N,), who also sends what goes beside the update; a canary that is out does not.

        Returns:
            What leaves each client, (N, P).
        """
        defense = self._memory.defense
        message = defense.client_message(update, context)
        received = defense.server_receive(message, context)
        self._total += (received * present[:, None]).sum(0)
        for name, value in context.sent.items():
            counts = (present & reporting).reshape(-1, *[1] * (value.dim() - 1))
            self._sent[name] = self._sent.get(name, 0) + (value * counts).sum(0)
        return message

    def finish(self) -> Tensor:
        """What the server applies, (P,)."""
        return self._memory.defense.aggregate(self._total, replace(self._context, sent=self._sent))
