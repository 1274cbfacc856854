"""Client splits of the papers: which examples each client holds.

Every client holds the same number of examples. Where the clients together need more than there are, examples are held
by several clients, as in the papers' large federations; then clients are not disjoint, and example-level guarantees
against a third party do not hold. No client holds an example twice as long as its classes have others.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator

Split = Callable[[Tensor, int, int, torch.Generator, float], Tensor]


class _ClassQueues:
    """Examples of each class in random order, again and again in a new order."""

    def __init__(self, labels: Tensor, random: torch.Generator) -> None:
        self.random = random
        self.members = [(labels == label).nonzero()[:, 0] for label in range(int(labels.max()) + 1)]
        self.waiting = [members[:0] for members in self.members]

    def take(self, label: int, count: int) -> Tensor:
        """The next ``count`` examples of a class."""
        members = self.members[label]
        while len(self.waiting[label]) < count:
            order = torch.randperm(len(members), generator=self.random)
            self.waiting[label] = torch.cat([self.waiting[label], members[order]])
        taken, self.waiting[label] = self.waiting[label][:count], self.waiting[label][count:]
        return taken

    def mixed(self, counts: Tensor) -> Tensor:
        """Examples with ``counts`` (classes,) of each class."""
        return torch.cat([self.take(label, count) for label, count in enumerate(counts.tolist()) if count])

    @property
    def prior(self) -> Tensor:
        """Share of each class."""
        sizes = torch.tensor([len(members) for members in self.members], dtype=torch.float64)
        return sizes / sizes.sum()


def _iid(labels: Tensor, clients: int, examples: int, random: torch.Generator, level: float) -> Tensor:
    """Uniform, without repeats as long as the data lasts."""
    copies = -(-clients * examples // len(labels))
    order = torch.cat([torch.randperm(len(labels), generator=random) for _ in range(copies)])
    return order[: clients * examples].reshape(clients, examples)


def _shards(labels: Tensor, clients: int, examples: int, random: torch.Generator, level: float) -> Tensor:
    """Two random shards of one class each per client (McMahan et al. 2017; of Fed-αCDP and of Bayesian DP)."""
    size, queues = examples // 2, _ClassQueues(labels, random)
    smallest = min(len(members) for members in queues.members if len(members))
    if examples < 2 or examples % 2 or size > smallest:
        raise UsageError(
            f"split shards needs an even number of examples per client, at most {2 * smallest}, not {examples}; "
            "set --examples, or use --split iid"
        )
    copies, per_class = 0, [0]
    while sum(per_class) < 2 * clients:
        copies += 1
        per_class = [copies * len(members) // size for members in queues.members]
    shards = torch.stack([queues.take(label, size) for label, count in enumerate(per_class) for _ in range(count)])
    chosen = torch.randperm(len(shards), generator=random)[: 2 * clients]
    return shards[chosen].reshape(clients, examples)


def _dirichlet(labels: Tensor, clients: int, examples: int, random: torch.Generator, level: float) -> Tensor:
    """Class shares of each client drawn from a Dirichlet distribution with concentration ``level`` per class."""
    queues = _ClassQueues(labels, random)
    shares = np.random.default_rng(int(torch.randint(2**62, (1,), generator=random)))
    concentration = (queues.prior * len(queues.members) * level).clamp(min=1e-6).numpy()
    counts = [shares.multinomial(examples, shares.dirichlet(concentration)) for _ in range(clients)]
    return torch.stack([queues.mixed(torch.from_numpy(count)) for count in counts])


def _similarity(labels: Tensor, clients: int, examples: int, random: torch.Generator, level: float) -> Tensor:
    """A share ``level`` of uniform labels, the rest from one class, client modulo classes (DP-SCAFFOLD, appendix D)."""
    queues = _ClassQueues(labels, random)
    present = [label for label, members in enumerate(queues.members) if len(members)]
    uniform, rows = round(level * examples), []
    for client in range(clients):
        drawn = torch.multinomial(queues.prior, uniform, replacement=True, generator=random) if uniform else []
        counts = torch.bincount(torch.as_tensor(drawn, dtype=torch.long), minlength=len(queues.members))
        counts[present[client % len(present)]] += examples - uniform
        rows.append(queues.mixed(counts))
    return torch.stack(rows)


def _sorted(labels: Tensor, clients: int, examples: int, random: torch.Generator, level: float) -> Tensor:
    """A share ``level`` drawn uniformly, the rest dealt in runs after sorting by label: nobody shares an example.

    Hsu et al. 2019 and Karimireddy et al. 2020 (SCAFFOLD), as the text of DP-SCAFFOLD has it; level 0 sorts everything.
    """
    if clients * examples > len(labels):
        raise UsageError(
            f"{clients} clients with {examples} examples each need {clients * examples}, but the data has "
            f"{len(labels)} and a sorted split gives none twice; lower clients or examples, or use --split similarity"
        )
    chosen = torch.randperm(len(labels), generator=random)[: clients * examples]
    uniform = round(level * examples)
    mixed, rest = chosen[: clients * uniform], chosen[clients * uniform :]
    runs = rest[labels[rest].argsort(stable=True)]
    return torch.cat([mixed.reshape(clients, uniform), runs.reshape(clients, examples - uniform)], dim=1)


def natural_clients(owners: Tensor | None, clients: int, examples: int, seed: int) -> Tensor:
    """Positions (N, n) of the examples that belong to each client by nature, in random order.

    Raises:
        UsageError: the data has no natural clients, too few of them, or one with too few examples.
    """
    if owners is None:
        raise UsageError("this data has no natural clients; choose --split iid or another one")
    random, rows = generator(seed, "clients", "natural"), []
    for client in range(clients):
        own = (owners == client).nonzero()[:, 0]
        if len(own) < examples:
            raise UsageError(
                f"client {client} has {len(own)} examples of its own, {examples} are asked; lower clients or examples"
            )
        rows.append(own[torch.randperm(len(own), generator=random)[:examples]])
    return torch.stack(rows)


def _without_repeats(held: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Puts other examples of the same class in the place of those that a client (N, n) holds already, where any are."""
    ordered = held.sort(1).values
    for client in (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero()[:, 0].tolist():
        random, own = generator(seed, "clients", "repeats", client), held[client]
        ranked = own.sort(stable=True)
        again = ranked.indices[1:][ranked.values[1:] == ranked.values[:-1]]
        absent = torch.ones(len(labels), dtype=torch.bool)
        absent[own] = False
        for label in labels[own[again]].unique().tolist():
            places, others = again[labels[own[again]] == label], (absent & (labels == label)).nonzero()[:, 0]
            others = others[torch.randperm(len(others), generator=random)[: len(places)]]
            held[client, places[: len(others)]] = others
    return held


def most_copies(held: Tensor) -> int:
    """Return how often a client of examples (N, n) holds one and the same example, at most; 1 without repeats."""
    return max(int(own.unique(return_counts=True)[1].max()) for own in held)


NATURAL = "natural"

SPLITS: dict[str, Split] = {
    "iid": _iid, "shards": _shards, "dirichlet": _dirichlet, "similarity": _similarity, "sorted": _sorted,
}  # fmt: skip


def most_examples(labels: Tensor, owners: Tensor | None, clients: int, split: str) -> int:
    """The most examples per client that a split of data with these labels (D,) and owners can give, none of them twice.

    A client may happen to draw all of its examples from the smallest class, but under ``iid`` and ``sorted``.
    """
    if split == NATURAL:
        return 0 if owners is None else min(int((owners == client).sum()) for client in range(clients))
    if split in ("iid", "sorted"):
        return len(labels) if split == "iid" else len(labels) // clients
    sizes = torch.bincount(labels)
    return int(sizes[sizes > 0].min())


def split_clients(labels: Tensor, clients: int, examples: int, split: str, level: float, seed: int) -> Tensor:
    """Positions (N, n) of each client's examples, a pure function of the arguments.

    Args:
        labels: (D,) of the training data.
        clients: N. examples: n, the same for every client.
        split: one of :data:`SPLITS`.
        level: Dirichlet concentration (> 0), or the share of uniform labels for ``similarity`` and ``sorted`` (0 to 1).
        seed: of the run.

    Raises:
        UsageError: an unknown split, or examples that cannot be split so.
    """
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; choose {', '.join([*SPLITS, NATURAL])}")
    if clients < 1 or examples < 1:
        raise UsageError(f"{clients} clients with {examples} examples each; every client needs at least one example")
    if examples > len(labels):
        raise UsageError(f"{examples} examples per client, but the data has {len(labels)}; lower it")
    held = SPLITS[split](labels, clients, examples, generator(seed, "clients", split), level)
    return _without_repeats(held, labels, seed)
