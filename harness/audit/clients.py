"""Canaries among clients: crafted updates, read from each message (server) or from the aggregate (third party)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.audit.canaries import Canaries
from harness.audit.federation import AuditedFederation, chunks
from harness.audit.settings import AuditSettings
from harness.base.randomness import Stream, poisson_sample
from harness.federation.server_round import ServerRound


@dataclass
class ClientAudit:
    """Plays the rounds and scores each canary by what the view sees.

    Attributes:
        included: (m,), the coins.
        others: (R, P), updates of real clients, which the auditor knows and takes away.
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
        everyone, scores = slice(0, self.settings.canaries), torch.zeros(self.settings.canaries)
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
        taken = poisson_sample((self.settings.canaries,), self.rate, random)
        server, scores = federation.begin(), torch.zeros(part.stop - part.start)
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
        taken = poisson_sample((len(self.others),), self.rate, random)
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
        rows_of = torch.arange(len(released)).expand(len(positions))[:, None]
        return released[rows_of, positions].sum(1)
