"""Who takes part in a round, and which examples each local step uses; keyed, so that a resumed run draws the same."""

import torch
from torch import Tensor

from harness.base.randomness import Stream, poisson_sample
from harness.federation.examples import Batches
from harness.training.settings import TrainSettings


def sample_clients(settings: TrainSettings, round_index: int, key: int | str | None = None) -> list[int]:
    """The clients of a round, in ascending order; none at all is possible with Poisson sampling.

    ``key`` decides, by default the seed of the settings.
    """
    total, random = settings.clients, Stream(settings.seed if key is None else key, "participants", round_index)
    if settings.client_sampling == "all":
        return list(range(total))
    if settings.client_sampling == "poisson":
        return poisson_sample((total,), settings.clients_per_round / total, random).nonzero()[:, 0].tolist()
    return sorted(random.permutation(total)[: settings.clients_per_round].tolist())


def sample_batches(
    settings: TrainSettings, round_index: int, clients: list[int], key: int | str | None = None
) -> Batches:
    """The batches of every local step of all the clients of a round.

    ``shuffle`` passes over the client's data in a new order every round, ``partition`` in the same order every round;
    ``without-replacement`` and ``poisson`` draw every step anew. A Poisson batch has as many places as the largest one
    of the round needs, so that no number depends on which clients are trained together; those that are left over are
    not present.
    """
    key = settings.seed if key is None else key
    rows = [_places(settings, key, round_index, client) for client in clients]
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


def _places(settings: TrainSettings, key: int | str, round_index: int, client: int) -> Tensor:
    """Places (L, B), or for Poisson sampling which of the n examples each step uses (L, n)."""
    steps, batch, examples = settings.local_steps, settings.batch_size, settings.client_examples
    kind = settings.batch_sampling
    random = Stream(key, "batches", kind, client, *([] if kind == "partition" else [round_index]))
    if kind == "poisson":
        return poisson_sample((steps, examples), batch / examples, random)
    if kind == "without-replacement":
        return torch.stack([random.permutation(examples)[:batch] for _ in range(steps)])
    per_pass = examples // batch
    passes = -(-steps // per_pass)
    orders = [random.permutation(examples)[: per_pass * batch] for _ in range(passes)]
    return torch.cat(orders).reshape(-1, batch)[:steps]
