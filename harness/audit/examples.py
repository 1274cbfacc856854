"""Canaries among examples: one client's local steps, or many clients with one canary each, as the server sees them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.audit.canaries import Canaries, ExamplesAndCanaries, sampled
from harness.audit.memory import Memory, ServerRound, chunks, quiet
from harness.audit.settings import AuditSettings
from harness.defenses import RoundContext
from harness.randomness import generator

RealGradients = Callable[[Tensor], Tensor]
"""Per-example gradients (R, P) of the real examples at weights (P,)."""


@dataclass
class ExampleAudit:
    """Plays the rounds and scores each canary by every released step (tap T2.step).

    Attributes:
        included: (m,), the coins.
        real: gradients of the real examples, which the auditor knows and takes away; None without.
        weights: (P,), where training starts.
    """

    memory: Memory
    settings: AuditSettings
    canaries: Canaries
    included: Tensor
    real: RealGradients | None
    weights: Tensor

    def scores(self) -> Tensor:
        """The higher, the likelier a canary is in: (m,)."""
        scores = torch.zeros(self.settings.canaries)
        for now in range(self.settings.rounds):
            server = ServerRound(self.memory, now)
            if self.settings.design == "together":
                scores += self._local_steps(server, now, slice(None), self.memory.context(now, 0, 1))
            else:
                for rows in chunks(self.settings.canaries):
                    context = self.memory.context(now, rows.start, rows.stop - rows.start)
                    scores[rows] += self._local_steps(server, now, rows, context)
            self.weights = self.weights + server.finish().to(self.weights.dtype)
        return scores

    def _local_steps(self, server: ServerRound, now: int, rows: slice, context: RoundContext) -> Tensor:
        """One round of one client with all canaries, or of clients with one canary each."""
        clients = len(context.keys)
        scores = torch.zeros(clients, len(self.canaries.positions[rows]) // clients)
        update = torch.zeros(clients, self.memory.layout.total, dtype=torch.float64)
        for step in range(self.settings.steps):
            context = replace(context, local_step=step)
            seen = self._batch(now, step, rows, clients, self.weights + update[0].to(self.weights.dtype))
            known = replace(seen, present=torch.zeros_like(seen.present))
            expected = self.memory.defense.client_step(known, quiet(context)).step if self.real else 0.0
            released = self.memory.defense.client_step(seen, context).step
            scores += self._read(released - expected, seen.positions)
            update = update - self.settings.learning_rate * released
        all_clients = torch.ones(clients, dtype=torch.bool)
        server.receive(update, context, all_clients, all_clients)
        return scores.flatten()

    def _batch(self, now: int, step: int, rows: slice, clients: int, weights: Tensor) -> ExamplesAndCanaries:
        """What Poisson sampling takes into a step; what is out or not sampled counts as zero."""
        settings, random = self.settings, generator(self.settings.seed, "audit sample", now, step)
        taken = sampled(settings.canaries, settings.sampling_rate, random)
        present = (taken & self.included)[rows].reshape(clients, -1).float()
        positions = self.canaries.positions[rows].reshape(*present.shape, -1)
        real = torch.zeros(clients, 0, weights.shape[0])
        if self.real is not None:
            real = self.real(weights)
            real = real[None] * sampled(len(real), settings.sampling_rate, random)[None, :, None]
        return ExamplesAndCanaries(real, positions, present, self.canaries.tensors, self.memory.layout.sizes)

    def _read(self, released: Tensor, positions: Tensor) -> Tensor:
        """Scores (N, C) from what N clients released (N, P)."""
        if self.settings.design == "norm":
            return released.norm(dim=1, keepdim=True)
        return released.gather(1, positions.flatten(1)).reshape(positions.shape).sum(-1)
