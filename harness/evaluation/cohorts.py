"""Sums of other cohorts in each round, and the single updates behind them, by one who knows who took part.

A secure sum hides a client among those of its round. Where the same clients come again in other rounds, each with the
same update, the sums are a linear system. Sources: Lam et al., "Gradient Disaggregation: Breaking Privacy in Federated
Learning by Reconstructing the User Participant Matrix" (ICML 2021); Marchand et al., "SRATTA: Sample Re-ATTribution
Attack of Secure Aggregation in Federated Learning" (ICML 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator

_WHOLE = 1e-8


@dataclass(frozen=True)
class Separated:
    """What sums tell of N clients.

    Attributes:
        updates: (N, P) float64, of least length among those that fit the sums best.
        determined: (N,), whose update the sums leave no choice of.
        rank: of the linear system, at most N.
        gain: (N,), by how much independent errors of deviation 1 in every sum become larger in a client's update.
    """

    updates: Tensor
    determined: Tensor
    rank: int
    gain: Tensor


def taking_part(cohorts: Sequence[Sequence[str]]) -> tuple[list[str], Tensor]:
    """The names of all clients (N), sorted, and who took part: (R, N) float64 of zeros and ones.

    Args:
        cohorts: the clients of each round, by name.

    Raises:
        UsageError: there is no round, one has no client, or one lists a client twice.
    """
    if not cohorts:
        raise UsageError("no round of sums; give the clients of each round")
    for number, cohort in enumerate(cohorts):
        twice = [name for name in cohort if cohort.count(name) > 1]
        if not cohort:
            raise UsageError(f"round {number} has no clients; give its cohort, or leave its sum out")
        if twice:
            raise UsageError(f"client {twice[0]!r} stands twice in round {number}; list each client once")
    names = sorted({name for cohort in cohorts for name in cohort})
    place = {name: number for number, name in enumerate(names)}
    part = torch.zeros(len(cohorts), len(names), dtype=torch.float64)
    for number, cohort in enumerate(cohorts):
        part[number, [place[name] for name in cohort]] = 1.0
    return names, part


def separated(sums: Tensor, part: Tensor) -> Separated:
    """The clients' updates behind the sums of several rounds, as far as they are determined.

    Args:
        sums: (R, P), of the updates of each round's clients.
        part: (R, N), the share of each client's update in each sum; 0 for those who took no part.

    Raises:
        UsageError: there are other cohorts than sums, or something is no number.
    """
    if len(sums) != len(part):
        raise UsageError(f"{len(sums)} sums of {len(part)} cohorts; give the cohort of every round, and no other")
    if not (sums.isfinite().all() and part.isfinite().all()):
        raise UsageError("sums or cohorts hold NaN or infinity; leave such rounds out")
    inverse = torch.linalg.pinv(part.double())
    resolved = inverse @ part.double()
    return Separated(
        inverse @ sums.double(),
        (resolved.diagonal() - 1).abs() < _WHOLE,
        int(torch.linalg.matrix_rank(part.double())),
        inverse.norm(dim=1),
    )


@dataclass(frozen=True)
class Recovered:
    """What one cell's sums told of its clients (V,): ``determined``, the ``rank`` of their system, and ``error``, how far
    each update is from the one that the client sent in the first round, as a share of its length."""

    determined: Tensor
    rank: Tensor
    error: Tensor

    def measures(self) -> Mapping[str, Tensor]:
        """The same as metrics of victims."""
        return {"determined": self.determined.double(), "rank": self.rank.double(), "update_error": self.error}

    def first(self, count: int) -> "Recovered":
        """The same of the first clients."""
        return Recovered(self.determined[:count], self.rank[:count], self.error[:count])


def cohorts_of(seed: int, clients: int, together: int, rounds: range) -> Tensor:
    """Who takes part (R, K) of so many clients, at random in each round."""
    return torch.stack(
        [torch.randperm(clients, generator=generator("cohort", seed, number))[:together] for number in rounds]
    )
