"""Canaries among the examples of several clients, of whose round nothing is seen but the sum.

That is all that the server of a secure sum, or anybody who follows the published models, has of a round.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.audit.batches import Dealt, PlayedExamples, deal
from harness.audit.canaries import ExamplesAndCanaries
from harness.audit.federation import AuditedFederation
from harness.federation.client_round import train_locally
from harness.federation.context import RoundContext


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
        everything = torch.arange(settings.canaries)
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
        settings, weights, scores = self.examples.settings, self.weights, torch.zeros(len(canaries))
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
        """What the server applies (P,) after one round, and what the auditor does not know of it (P,)."""
        known = self._known(federation, now, weights, dealt)
        applied, messages = self._play(federation, now, weights, dealt, canaries=True)
        colluding = messages[self.examples.settings.holders :].sum(0) / federation.cohort.clients_per_round
        return applied, applied - colluding - known

    def _known(self, federation: AuditedFederation, now: int, weights: Tensor, dealt: Dealt) -> Tensor | float:
        """What the real examples alone would give without noise (P,), exactly so in a round of one local step."""
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
        everybody = torch.ones(len(weights), dtype=torch.bool)
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
