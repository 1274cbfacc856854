"""The federation that an audit plays: its defense, and what the server and the clients remember."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.audit.planted import Canaries, Dealt, ExamplesAndCanaries, PlayedExamples, deal
from harness.audit.settings import AuditSettings
from harness.base.randomness import Stream, poisson_sample
from harness.base.vectors import Layout
from harness.federation.client_round import send, train_locally
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.examples import ExampleGradients, LocalStep
from harness.federation.recorders import Recorder
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
    device: torch.device | None = None

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
        return ServerRound(self.defense, self.layout.total, self.device)

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
        """Return what the server applies at the end of round ``now``, (P,)."""
        applied = server.aggregate(self.context(now, 0, 1))
        self.on_round()
        return applied


# Canaries among examples: one client's local steps, or many clients with one canary each, as the server sees them.


@dataclass
class ExampleAudit:
    """Plays the rounds and scores each canary by every released step (tap T2.step) of the client that has it.

    Attributes:
        weights: (P,), where training starts.
    """

    federation: AuditedFederation
    examples: PlayedExamples
    weights: Tensor

    def scores(self) -> Tensor:
        """The higher, the likelier a canary is in: (m,)."""
        settings, federation = self.examples.settings, self.federation
        everything = torch.arange(settings.canaries, device=self.weights.device)
        scores = self.weights.new_zeros(settings.canaries)
        for now in range(settings.rounds):
            server = federation.begin()
            if settings.design == "together":
                clients = federation.cohort.clients_per_round
                dealt = deal(everything, clients, clients)
                scores += self._local_steps(server, dealt, federation.context(now, 0, clients))
            else:
                for rows in chunks(settings.canaries):
                    context = federation.context(now, rows.start, rows.stop - rows.start)
                    one_each = everything[rows, None]
                    scores += self._local_steps(server, Dealt(one_each, torch.ones_like(one_each).bool()), context)
            self.weights = self.weights + federation.finish(server, now).to(self.weights.dtype)
        return scores

    def _local_steps(self, server: ServerRound, canaries: Dealt, context: RoundContext) -> Tensor:
        """One round of clients with their canaries: the scores (m,) of these, zero for all others."""
        clients, settings = len(context.keys), self.examples.settings
        reader = _StepReader(self, canaries, self.examples.deal_real(clients, clients), context)
        weights = self.weights.expand(clients, -1)
        trained = train_locally(
            reader.batch, weights, self.federation.defense, context, settings.steps, recorders=[reader]
        )
        everybody = torch.ones_like(weights[:, 0], dtype=torch.bool)
        self.federation.deliver(server, trained.update, context, everybody, everybody)
        scores = self.weights.new_zeros(settings.canaries)
        scores[canaries.places[canaries.held]] = torch.stack(reader.scores).sum(0)[canaries.held]
        return scores


@dataclass
class _StepReader(Recorder):
    """Makes the batches of one round's clients, and reads what every step releases of them."""

    audit: ExampleAudit
    canaries: Dealt
    real: Dealt
    context: RoundContext
    scores: list[Tensor] = field(default_factory=list)
    _expected: Tensor | float = 0.0

    def batch(self, step: int, weights: Tensor) -> ExamplesAndCanaries:
        """Return what is in a step's batches; what they release without canaries and noise is remembered."""
        examples = self.audit.examples
        seen = examples.batch(self.context.round, step, weights, self.canaries, self.real)
        if examples.real is not None:
            # Known to the auditor before the step, whose memory it must not touch.
            quiet = replace(self.context, local_step=step).quiet()
            self._expected = self.audit.federation.defense.client_step(seen.without_canaries(), quiet).step
        return seen

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        """Scores (N, C) of the canaries of N clients, from what these released."""
        assert isinstance(examples, ExamplesAndCanaries)  # what `batch` made
        released = made.step - self._expected
        positions = examples.positions
        if self.audit.examples.settings.design == "norm":
            self.scores.append(released.norm(dim=1, keepdim=True))
            return
        self.scores.append(released.gather(1, positions.flatten(1)).reshape(positions.shape).sum(-1))


# Canaries among the examples of several clients, of whose round nothing is seen but the sum.
#
# That is all that the server of a secure sum, or anybody who follows the published models, has of a round.


@dataclass
class SumAudit:
    """Plays rounds of K clients and scores each canary by what the server applies (tap T0.agg).

    Canaries and real examples are spread over the clients that are honest and stay. The last ones of a round drop out
    before they send anything; those before them collude: they have no examples, and the auditor knows what they send.

    Attributes:
        weights: (P,), where training starts.
    """

    federation: AuditedFederation
    examples: PlayedExamples
    weights: Tensor

    def scores(self) -> Tensor:
        """The higher, the likelier a canary is in: (m,)."""
        settings = self.examples.settings
        everything = torch.arange(settings.canaries, device=self.weights.device)
        if settings.design == "together":
            return self._rounds(self.federation, everything)
        # Each has a federation of its own.
        alone = (
            (replace(self.federation, stream=f"{self.federation.stream} {canary}", server={}, clients={}), canary)
            for canary in range(settings.canaries)
        )
        return torch.cat([self._rounds(federation, everything[canary, None]) for federation, canary in alone])

    def _rounds(self, federation: AuditedFederation, canaries: Tensor) -> Tensor:
        """All rounds of a federation with some canaries, by number; their scores (n,)."""
        settings, weights, scores = self.examples.settings, self.weights, self.weights.new_zeros(len(canaries))
        present = settings.clients_per_round - settings.dropouts
        dealt = deal(canaries, settings.holders, present)
        for now in range(settings.rounds):
            applied, released = self._round(federation, now, weights.expand(present, -1), dealt)
            if settings.design == "norm":
                scores += released.norm()
            else:
                # Gradients are taken away from weights.
                scores -= released[self.examples.canaries.positions[canaries]].sum(1)
            weights = weights + applied.to(weights.dtype)
        return scores

    def _round(self, federation: AuditedFederation, now: int, weights: Tensor, dealt: Dealt) -> tuple[Tensor, Tensor]:
        """Return what the server applies (P,) after one round, and what the auditor does not know of it (P,)."""
        known = self._known(federation, now, weights, dealt)
        applied, messages = self._play(federation, now, weights, dealt, canaries=True)
        colluding = messages[self.examples.settings.holders :].sum(0) / federation.cohort.clients_per_round
        return applied, applied - colluding - known

    def _known(self, federation: AuditedFederation, now: int, weights: Tensor, dealt: Dealt) -> Tensor | float:
        """Return what the real examples alone would give without noise (P,), exactly so in a round of one local
        step."""
        if self.examples.real is None:
            return 0.0
        remembered = {first: dict(state) for first, state in federation.clients.items()}
        quiet = replace(federation, noise_scale=0.0, server=dict(federation.server), clients=remembered)
        return self._play(quiet, now, weights, dealt, canaries=False)[0]

    def _play(
        self, federation: AuditedFederation, now: int, weights: Tensor, dealt: Dealt, canaries: bool
    ) -> tuple[Tensor, Tensor]:
        """One round: what the server applies (P,) and what each of N clients sent (N, P)."""
        server, context = federation.begin(), federation.context(now, 0, len(weights))
        trained = self._train(federation, context, weights, dealt, canaries)
        everybody = torch.ones_like(weights[:, 0], dtype=torch.bool)
        messages = federation.deliver(server, trained, context, everybody, everybody)
        return federation.finish(server, now), messages

    def _train(
        self, federation: AuditedFederation, context: RoundContext, weights: Tensor, dealt: Dealt, canaries: bool
    ) -> Tensor:
        examples = self.examples
        real = examples.deal_real(examples.settings.holders, len(weights))

        def batch(step: int, at: Tensor) -> ExamplesAndCanaries:
            seen = examples.batch(context.round, step, at, dealt, real)
            return seen if canaries else seen.without_canaries()

        return train_locally(batch, weights, federation.defense, context, examples.settings.steps).update


# Canaries among clients: crafted updates, read from each message (server) or from the aggregate (third party).


@dataclass
class ClientAudit:
    """Plays the rounds and scores each canary by what the view sees.

    Attributes:
        included: (m,), the coins, on the device of the canaries.
        others: (R, P), updates of real clients, which the auditor knows and takes away, on the same device.
        rate: share of the clients in a round.
        view: ``server`` sees every message (tap T1.out), any other the aggregate (tap T0.agg).
    """

    federation: AuditedFederation
    settings: AuditSettings
    canaries: Canaries
    included: Tensor
    others: Tensor
    rate: float
    view: str

    def scores(self) -> Tensor:
        """The higher, the likelier a canary is in: (m,)."""
        everyone, scores = slice(0, self.settings.canaries), self.others.new_zeros(self.settings.canaries)
        # A server that sees every message sees canaries apart even when they come together.
        if self.settings.design == "together" or self.view == "server":
            for now in range(self.settings.rounds):
                scores += self._round(self.federation, now, everyone)
            return scores
        for canary in range(self.settings.canaries):
            # Each has a federation of its own.
            federation = replace(self.federation, stream=f"{self.federation.stream} {canary}", server={}, clients={})
            for now in range(self.settings.rounds):
                scores[canary] += self._round(federation, now, slice(canary, canary + 1))[0]
        return scores

    def _round(self, federation: AuditedFederation, now: int, part: slice) -> Tensor:
        """One round of some canaries and the real clients; the scores of these canaries."""
        random = Stream(federation.stream, "sample", now)
        taken = poisson_sample((self.settings.canaries,), self.rate, random).to(self.others.device)
        server, scores = federation.begin(), self.others.new_zeros(part.stop - part.start)
        expected = self._receive_others(federation, server, now, random) if len(self.others) else 0.0
        for chunk in chunks(part.stop - part.start):
            rows = slice(part.start + chunk.start, part.start + chunk.stop)
            update = self.canaries.dense(rows, self.included[rows])
            context = federation.context(now, rows.start, len(update))
            message = federation.deliver(server, update, context, taken[rows], self.included[rows])
            if self.view == "server":
                scores[chunk] = self._read(message, rows) * taken[rows]
        aggregate = federation.finish(server, now)
        return scores if self.view == "server" else self._read((aggregate - expected)[None], part)

    def _receive_others(self, federation: AuditedFederation, server: ServerRound, now: int, random: Stream) -> Tensor:
        """Real clients take part; returns the aggregate (P,) they alone would give without noise."""
        known = replace(federation, noise_scale=0.0, server=dict(federation.server), clients={})
        undisturbed = known.begin()
        taken = poisson_sample((len(self.others),), self.rate, random).to(self.others.device)
        for rows in chunks(len(self.others)):
            first, count, update = self.settings.canaries + rows.start, rows.stop - rows.start, self.others[rows]
            known.deliver(undisturbed, update, known.context(now, first, count), taken[rows], taken[rows])
            federation.deliver(server, update, federation.context(now, first, count), taken[rows], taken[rows])
        return known.finish(undisturbed, now)

    def _read(self, released: Tensor, rows: slice) -> Tensor:
        """Scores (n,) of canaries from one vector (1, P) for all of them or one for each (n, P)."""
        positions = self.canaries.positions[rows]
        if self.settings.design == "norm":
            return released.norm(dim=1).expand(len(positions))
        rows_of = torch.arange(len(released), device=released.device).expand(len(positions))[:, None]
        return released[rows_of, positions].sum(1)
