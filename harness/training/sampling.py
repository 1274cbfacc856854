"""Who takes part in a round, and which examples each local step uses; keyed, so that a resumed run draws the same."""

import torch
from torch import Tensor

from harness.federation.examples import Batches
from harness.training.settings import TrainSettings
from harness.vectors.randomness import generator, poisson_sample


def sample_clients(settings: TrainSettings, round_index: int) -> list[int]:
    """The clients of a round, in ascending order; none at all is possible with Poisson sampling."""
    total, random = settings.clients, generator(settings.seed, "participants", round_index)
    if settings.client_sampling == "all":
        return list(range(total))
    if settings.client_sampling == "poisson":
        return poisson_sample((total,), settings.clients_per_round / total, random).nonzero()[:, 0].tolist()
    return sorted(torch.randperm(total, generator=random)[: settings.clients_per_round].tolist())


def sample_batches(settings: TrainSettings, round_index: int, clients: list[int]) -> Batches:
    """The batches of every local step of all the clients of a round.

    ``shuffle`` passes over the client's data in a new order every round, ``partition`` in the same order every round;
    ``without-replacement`` and ``poisson`` draw every step anew. A Poisson batch has as many places as the largest one
    of the round needs, so that no number depends on which clients are trained together; those that are left over are
    not present.
    """
    rows = [_places(settings, round_index, client) for client in clients]
    if not rows:
        return Batches(torch.zeros(0, settings.local_steps, 0, dtype=torch.long), None)
    if settings.batch_sampling != "poisson":
        return Batches(torch.stack(rows), None)
    counts = torch.stack([drawn.sum(-1) for drawn in rows])
    width = max(int(counts.max()), 1)
    return Batches(torch.stack([_first(drawn, width) for drawn in rows]), torch.arange(width) < counts[..., None])


def _first(drawn: Tensor, width: int) -> Tensor:
    """Places (L, width) of a client's data, those that were drawn (L, n) first."""
    return drawn.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width].clone()


def _places(settings: TrainSettings, round_index: int, client: int) -> Tensor:
    """Places (L, B), or for Poisson sampling which of the n examples each step uses (L, n)."""
    steps, batch, examples = settings.local_steps, settings.batch_size, settings.client_examples
    kind = settings.batch_sampling
    random = generator(settings.seed, "batches", kind, client, *([] if kind == "partition" else [round_index]))
    if kind == "poisson":
        return poisson_sample((steps, examples), batch / examples, random)
    if kind == "without-replacement":
        return torch.stack([torch.randperm(examples, generator=random)[:batch] for _ in range(steps)])
    per_pass = examples // batch
    passes = -(-steps // per_pass)
    orders = [torch.randperm(examples, generator=random)[: per_pass * batch] for _ in range(passes)]
    return torch.cat(orders).reshape(-1, batch)[:steps]
