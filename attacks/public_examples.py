"""Public examples in a victim's place: drawn of a class, and the gradients that they would have there."""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.attacks.candidates import dummy_gradient
from harness.attacks.residual import knows_clip
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.observation import Observation

# As many numbers of gradients are held at once: 128 MiB.
_HELD = 2**25


def drawn_of_class(observation: Observation, label: int, count: int, name: str) -> Tensor:
    """``count`` images (N, D) drawn from what public data say of a class, the same ones for every observation."""
    prior = observation.prior
    assert prior is not None
    where = torch.randn(1, count, prior.means.shape[1], generator=generator(name, label)).to(prior.means)
    return prior.place(where, torch.full((1, count), label, device=where.device))[0]


def gradient_of(seen: Observation, images: Tensor, label: int, differentiable: bool = True) -> Tensor:
    """The gradients (R, P) that images (R, D) of a class would have in their rows, clipped as it is known."""
    shaped = images.to(seen.target).reshape(seen.rows, 1, *seen.model.image_shape)
    labels = torch.full((seen.rows, 1), label, device=seen.target.device)
    return dummy_gradient(seen, shaped, labels, knows_clip(seen), differentiable)


def in_parts(attack: str, observation: Observation, compute: Callable[[Observation], Tensor]) -> Tensor:
    """What is computed of each row, in parts that fit into memory; of two rows at least, as one takes other kernels.

    Raises:
        UsageError: there are no public data, or several examples were read together.
    """
    if observation.prior is None:
        raise UsageError(
            f"attack {attack!r} needs public data; use --prior auto, or --prior FILE.npz with data of your own"
        )
    if observation.examples > 1:
        raise UsageError(
            f"attack {attack!r} reads one example per observation, not {observation.examples}; use --batch-size 1 and "
            "one local step, or another attack"
        )
    found = []
    for rows in torch.arange(observation.rows).split(max(2, _HELD // observation.target.shape[1])):
        pair = rows.repeat(2) if len(rows) == 1 else rows
        found.append(compute(observation.take(pair.to(observation.target.device)))[: len(rows)])
    return torch.cat(found)
