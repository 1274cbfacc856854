"""Who takes part in a round, and which examples each local step uses; keyed, so that a resumed run draws the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.randomness import generator
from harness.training.settings import TrainSettings


def sample_clients(settings: TrainSettings, round_index: int) -> list[int]:
    """The clients of a round, in ascending order; none at all is possible with Poisson sampling."""
    total, random = settings.clients, generator(settings.seed, "participants", round_index)
    if settings.client_sampling == "all":
        return list(range(total))
    if settings.client_sampling == "poisson":
        drawn = torch.rand(total, generator=random) < settings.clients_per_round / total
        return drawn.nonzero()[:, 0].tolist()
    return sorted(torch.randperm(total, generator=random)[: settings.clients_per_round].tolist())


@dataclass(frozen=True)
class Batches:
    """Local batches of K clients: places (K, L, B) in each client's data, and which of them count (K, L, B)."""

    places: Tensor
    present: Tensor | None


def sample_batches(settings: TrainSettings, round_index: int, clients: list[int]) -> Batches:
    """The batches of every local step of some clients in a round.

    ``shuffle`` passes over the client's data in a new order every round, ``partition`` in the same order every round;
    ``without-replacement`` and ``poisson`` draw every step anew. A Poisson batch has as many places as the largest one
    of this client's steps needs; the empty places are not present.
    """
    rows = [_places(settings, round_index, client) for client in clients]
    if settings.batch_sampling != "poisson":
        return Batches(torch.stack(rows), None)
    drawn = torch.stack(rows)
    counts = drawn.sum(-1)
    width = max(int(counts.max()), 1) if drawn.numel() else 1
    order = drawn.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width]
    return Batches(order, torch.arange(width) < counts[..., None])


def _places(settings: TrainSettings, round_index: int, client: int) -> Tensor:
    """Places (L, B), or for Poisson sampling which of the n examples each step uses (L, n)."""
    steps, batch, examples = settings.local_steps, settings.batch_size, settings.client_examples
    kind = settings.batch_sampling
    random = generator(settings.seed, "batches", kind, client, *([] if kind == "partition" else [round_index]))
    if kind == "poisson":
        return torch.rand(steps, examples, generator=random) < batch / examples
    if kind == "without-replacement":
        return torch.stack([torch.randperm(examples, generator=random)[:batch] for _ in range(steps)])
    per_pass = examples // batch
    passes = -(-steps // per_pass)
    orders = [torch.randperm(examples, generator=random)[: per_pass * batch] for _ in range(passes)]
    return torch.cat(orders).reshape(-1, batch)[:steps]
