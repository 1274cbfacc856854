"""Canaries among examples: one client's local steps, or many clients with one canary each, as the server sees them."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from harness.audit.batches import Dealt, PlayedExamples, deal
from harness.audit.canaries import ExamplesAndCanaries
from harness.audit.federation import AuditedFederation, chunks
from harness.federation.client_round import train_locally
from harness.federation.context import RoundContext
from harness.federation.examples import ExampleGradients, LocalStep
from harness.federation.recorders import Recorder
from harness.federation.server_round import ServerRound


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
        everything, scores = torch.arange(settings.canaries), torch.zeros(settings.canaries)
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
        everybody = torch.ones(clients, dtype=torch.bool)
        self.federation.deliver(server, trained.update, context, everybody, everybody)
        scores = torch.zeros(settings.canaries)
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
        """What is in a step's batches; what they release without canaries and noise is remembered."""
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
