"""The local training of some clients of a round, all at once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.datasets import Dataset
from harness.defenses import Defense, RoundContext
from harness.models import RowModel
from harness.training.sampling import Batches


@dataclass(frozen=True)
class LocalRound:
    """What N clients made of a round.

    Attributes:
        message: (N, P) float64, as it arrived at the server and passed its per-client transform.
        gradient_norm: (N,), mean L2 norm of the first step's per-example gradients, before the defense.
        update_norm: (N,), L2 norm of the raw update.
        noise: (N,), largest standard deviation of the noise on a step over the round; zero without.
        mean_step: (N, P), mean of the local steps' directions, as the defense made them.
    """

    message: Tensor
    gradient_norm: Tensor
    update_norm: Tensor
    noise: Tensor
    mean_step: Tensor


def train_locally(
    model: RowModel,
    weights: Tensor,
    dataset: Dataset,
    data: Tensor,
    batches: Batches,
    defense: Defense,
    context: RoundContext,
    correction: Tensor | None = None,
    moving: bool = True,
    momentum: float = 0.0,
) -> LocalRound:
    """Trains N clients by SGD from the same weights and sends their updates.

    Args:
        model: the network.
        weights: (P,), the global model.
        dataset: the training data.
        data: (N, n), positions of each client's examples.
        batches: (N, L, B) places in ``data``.
        defense: whose hooks are called.
        context: of the round, with these clients' keys and state; what clients remember and send is left in it.
        correction: (N, P), what a federated algorithm adds to every step; None for nothing.
        moving: whether steps are taken at all; else every gradient is that of the global model.
        momentum: of local SGD, from zero in every round; not together with a correction.
    """
    rows, steps, _ = batches.places.shape
    start = weights.expand(rows, -1).contiguous()
    total = velocity = moved = update = torch.zeros_like(start)  # none is changed in place
    gradient_norm = noise = weights.new_zeros(rows)
    for step in range(steps):
        now = replace(context, local_step=step)
        chosen = data.gather(1, batches.places[:, step].to(data.device))
        images, labels = _examples(dataset.images, chosen).to(weights), _examples(dataset.labels, chosen)
        present = None if batches.present is None else batches.present[:, step].to(weights)
        per_example = model.example_gradients(start + update, images, labels, present, context.cohort.batch_size)
        if step == 0:
            norms = per_example.norms().square().sum(-1).sqrt()
            gradient_norm = norms.mean(1) if present is None else (norms * present).sum(1) / present.sum(1).clamp(min=1)
        result = defense.client_step(per_example, now)
        total = total + result.step
        if momentum:
            velocity = momentum * velocity + result.step
            moved = moved + velocity
        if moving:
            taken = moved if momentum else total
            taken = taken if correction is None else taken + (step + 1) * correction
            update = -now.learning_rate * taken
        if result.noise is not None:
            noise = torch.maximum(noise, torch.as_tensor(result.noise).to(weights).expand(rows))
    raw = update.double()
    message = defense.server_receive(defense.client_message(raw, context), context)
    return LocalRound(message, gradient_norm, raw.norm(dim=1), noise, total / steps)


def _examples(values: Tensor, places: Tensor) -> Tensor:
    """Entries of ``values`` (D, ...) at places (N, B): (N, B, ...)."""
    # The same as values[places], several times faster.
    return values.index_select(0, places.flatten()).unflatten(0, places.shape)
