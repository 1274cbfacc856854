"""Harms counted record by record, and which records came back.

A record is *reconstructed* where it comes back by the strict rule; it is *recognised* where what an attack made is
nearer to it than to all its look-alikes; its *membership is told* where an attacker who is shown it among look-alikes
picks it. Every bound is one-sided, by Clopper and Pearson (1934), at 95%. Records of one client share a fate, so a
client is one trial, however many of its records are hit. Clients that hold a record in common, under several random
seeds for example, are one trial too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.results import VictimRecord
from harness.scoring.success import STRICT_RMSE, clopper_pearson, upper_bound

#: How sure the bounds are; a bound on one side leaves all of the remaining chance on the other.
CONFIDENCE = 0.95


def is_of_rows(victims: Iterable[VictimRecord]) -> bool:
    """Return whether they are of a table."""
    return any(one.continuous_rmse is not None or one.categorical_accuracy is not None for one in victims)


def is_accurate(one: VictimRecord) -> bool:
    """Return whether an image, a text or a row of a table came back by the strict rule of its data."""
    exact = (one.model_extra or {}).get("text_exact")
    if exact is not None:
        return exact == 1
    if is_of_rows([one]):
        return one.categorical_accuracy in (None, 1) and (one.continuous_rmse or 0.0) <= STRICT_RMSE
    return one.rmse is not None and one.rmse <= STRICT_RMSE


Client = tuple[int, int]


@dataclass(frozen=True)
class Count:
    """A harm, counted.

    Attributes:
        records: that were attacked. hit: of them, with the harm; None where the files do not say it of each record.
        clients: that count as one trial each. touched: of them, with the harm for at least one record.
    """

    records: int
    hit: int | None
    clients: int
    touched: int

    @property
    def at_most(self) -> float:
        """The largest share of clients that the numbers allow, one-sided."""
        return upper_bound(self.touched, self.clients, CONFIDENCE)

    @property
    def at_least(self) -> float:
        """The smallest share of clients that the numbers allow, one-sided."""
        return clopper_pearson(self.touched, self.clients, 2.0 * CONFIDENCE - 1.0)[0]


def reconstructed(attacks: Iterable[Sequence[VictimRecord]]) -> Count:
    """Records that any of the attacks at one place brought back."""
    found = [one for victims in attacks for one in victims]
    trials = _trials(found)
    several = any(one.image for one in found)
    is_table = is_of_rows(found)
    touched = {trials[_client(one)] for one in found if one.outcome == "success"}
    hit = {_record(one) for one in found if (is_accurate(one) if several else one.outcome == "success")}
    records = len({_record(one) for one in found})
    return Count(records, None if several and is_table else len(hit), len(set(trials.values())), len(touched))


def first_in_lineup(victims: Sequence[VictimRecord]) -> Count:
    """Records that one attack puts first among their look-alikes; those without look-alikes do not count."""
    told = [one for one in victims if one.lineup_rank is not None and (one.lineup_size or 0) > 1]
    trials = _trials(told)
    first = [one for one in told if one.lineup_rank == 1]
    touched = {trials[_client(one)] for one in first}
    return Count(
        len({_record(one) for one in told}), len({_record(one) for one in first}), len(set(trials.values())),
        len(touched),
    )  # fmt: skip


def by_guessing(victims: Iterable[VictimRecord]) -> float | None:
    """The share of records that a guess puts first, the mean of 1 / size of the lineups; None without lineups."""
    sizes = [one.lineup_size for one in victims if one.lineup_rank is not None and (one.lineup_size or 0) > 1]
    return sum(1.0 / (size or 1) for size in sizes) / len(sizes) if sizes else None


def _client(one: VictimRecord) -> Client:
    return one.seed, one.victim


def _record(one: VictimRecord) -> tuple[object, ...]:
    """A record, once under all random seeds where its place in the data is known."""
    if one.dataset_index is not None:
        return one.dataset, one.dataset_index
    return one.seed, one.victim, one.image


def _trials(victims: Iterable[VictimRecord]) -> dict[Client, Client]:
    """The trial that each client belongs to, named by one of its clients."""
    parent: dict[Client, Client] = {}
    holders: dict[tuple[str, int], Client] = {}

    def root(client: Client) -> Client:
        while parent[client] != client:
            client = parent[client]
        return client

    for one in victims:
        parent.setdefault(_client(one), _client(one))
        if one.dataset_index is not None:
            holder = holders.setdefault((one.dataset, one.dataset_index), _client(one))
            parent[root(_client(one))] = root(holder)
    return {client: root(client) for client in parent}
