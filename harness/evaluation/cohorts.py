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
from harness.datasets import Victims
from harness.experiment import CellSettings

_TOLD = ("determined", "rank", "error")
_WHOLE, _LEAST = 1e-8, 1e-30
_EXACT = 1e-4


@dataclass(frozen=True)
class Separated:
    """Updates of N clients, as far as sums tell them.

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
        UsageError: there is no round, one has no client, lists a client twice, or is a text and no list.
    """
    if not cohorts:
        raise UsageError("no round of sums; give the clients of each round")
    for number, cohort in enumerate(cohorts):
        if isinstance(cohort, str):
            raise UsageError(f"the clients of round {number} are the text {cohort!r}; give a list of names")
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
        UsageError: there are other cohorts than sums, something is no matrix, or something is no number.
    """
    for name, values in (("sums", sums), ("cohorts", part)):
        if values.dim() != 2:
            raise UsageError(f"{name} are of shape {tuple(values.shape)}; give a matrix with a row for each round")
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


# The same of a cell, whose victims are all clients of a federation for each seed.


@dataclass(frozen=True)
class Recovered:
    """Clients (V,) of a cell, as far as its sums tell them.

    Attributes:
        determined: whose update the sums leave no choice of.
        rank: of the linear system of the client's federation.
        error: how far each update is from the one that was sent in the first round, as a share of its length.
    """

    determined: Tensor
    rank: Tensor
    error: Tensor

    @property
    def doubt(self) -> str | None:
        """Reason why an attack that fails on these updates has not failed on the sums: the updates are not those that
        were sent. None where they are."""
        if float(self.error.max()) <= _EXACT:
            return None
        return (
            f"updates are read off sums with an error of {float(self.error.mean()):.2g} of their length: who fails on "
            "them says nothing of the sums"
        )

    def measures(self) -> Mapping[str, Tensor]:
        """Return them as metrics of victims."""
        return {"determined": self.determined.double(), "rank_of_sums": self.rank.double(), "update_error": self.error}

    def first(self, count: int) -> "Recovered":
        """Return those of the first clients."""
        return Recovered(self.determined[:count], self.rank[:count], self.error[:count])


def cohorts_of(settings: CellSettings) -> Tensor:
    """Draw at random which clients of each federation take part in each round: (F, R, K), of a federation's V / F
    clients."""
    numbers = range(settings.round, settings.round + settings.rounds_seen)
    each = settings.in_round(0).together
    return torch.stack([
        torch.stack([torch.randperm(settings.victims, generator=generator("cohort", seed, number))[:each]
                     for number in numbers])
        for seed in settings.seeds
    ])  # fmt: skip


def of_cohort(truth: Victims, cohort: Tensor) -> Victims:
    """The examples (F, K * n) of a round's clients (F, K) in each federation, one client's after another's."""
    federations = len(cohort)

    def chosen(values: Tensor) -> Tensor:
        of_each = values.unflatten(0, (federations, -1))
        return of_each[torch.arange(federations)[:, None], cohort].flatten(1, 2)

    return Victims(*(chosen(values) for values in (truth.images, truth.labels, truth.indices)))


def recovered_from(sums: Tensor, cohorts: Tensor, clients: int, sent: Tensor) -> tuple[Tensor, Recovered]:
    """The clients' updates (V, P) behind means of cohorts, and what they are worth.

    Args:
        sums: (F, R, P), the mean of each round's cohort.
        cohorts: (F, R, K) of so many ``clients`` in each federation.
        sent: (V, P), what each client sent, for the error alone.
    """
    part = torch.zeros(*cohorts.shape[:2], clients, dtype=torch.float64).scatter_(2, cohorts, 1 / cohorts.shape[2])
    of_each = zip(sums, part, sent.unflatten(0, (-1, clients)), strict=True)
    updates, told, _ = zip(*(told_by_sums(*one) for one in of_each), strict=True)
    return torch.cat(updates), Recovered(*(torch.cat([getattr(one, name) for one in told]) for name in _TOLD))


def told_by_sums(sums: Tensor, part: Tensor, sent: Tensor) -> tuple[Tensor, Recovered, Tensor]:
    """The updates (N, P) of one federation's clients, what they are worth, and the ``gain`` (N,) of errors.

    Args:
        sums, part: as in :func:`separated`.
        sent: (N, P), what each client sent, for the error alone; of its type the updates are.
    """
    found, true = separated(sums.cpu(), part), sent.cpu().double()
    error = (found.updates - true).norm(dim=1) / true.norm(dim=1).clamp_min(_LEAST)
    rank = torch.full((len(sent),), found.rank)
    return found.updates.to(sent), Recovered(found.determined, rank, error), found.gain


def not_followed(defense: str) -> UsageError:
    """Return the error that single updates are not told. There is noise in the sums, and nobody says what it becomes in
    single updates."""
    return UsageError(
        f"what defense {defense!r} adds or leaves out is not followed from sums into single updates; leave --same-data "
        "out"
    )
