"""The federation that an audit plays: its defense, and what the server and the clients remember."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from harness.base.layout import Layout
from harness.federation.client_round import send
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.server_round import ServerRound, receive

_CHUNK = 256


def chunks(count: int) -> Iterator[slice]:
    """Rows that are played together; bounds memory and changes no number."""
    yield from (slice(first, min(first + _CHUNK, count)) for first in range(0, count, _CHUNK))


@dataclass
class AuditedFederation:
    """A federation under a defense, and the server's and the clients' memory of it.

    ``stream`` names its random streams; ``clients`` maps the first number of a chunk of clients to what they keep
    between rounds; ``on_round`` is called at the end of each.
    """

    defense: Defense
    learning_rate: float
    cohort: Cohort
    layout: Layout
    stream: str
    noise_scale: float
    server: State = field(default_factory=dict)
    clients: dict[int, State] = field(default_factory=dict)
    on_round: Callable[[], None] = lambda: None

    def context(self, now: int, first: int, count: int) -> RoundContext:
        """The beginning of round ``now`` for ``count`` clients from number ``first``."""
        keys = tuple((self.stream, client) for client in range(first, first + count))
        return RoundContext(
            now, 0, self.learning_rate, self.cohort, self.layout, keys, self.noise_scale,
            client=self.clients.setdefault(first, {}), server=self.server,
            clients=tuple(range(first, first + count)),
        )  # fmt: skip

    def begin(self) -> ServerRound:
        """The server's end of a round, which nobody has reported to yet."""
        return ServerRound(self.defense, self.layout.total)

    def deliver(
        self, server: ServerRound, update: Tensor, context: RoundContext, present: Tensor, reporting: Tensor
    ) -> Tensor:
        """Sends clients' updates to the server and returns what left each client, (N, P).

        Args:
            server: adds them up.
            update: (N, P).
            context: of these clients.
            present: (N,), who takes part.
            reporting: (N,), who also sends what goes beside the update; a canary that is out does not.
        """
        message = send(update, self.defense, context)
        server.add(receive(message, self.defense, context), context, present, reporting)
        return message

    def finish(self, server: ServerRound, now: int) -> Tensor:
        """What the server applies at the end of round ``now``, (P,)."""
        applied = server.aggregate(self.context(now, 0, 1))
        self.on_round()
        return applied
