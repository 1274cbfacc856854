"""Membership: training lowers the loss of a client's own examples, whatever the optimizer; this ranks candidates.

Of some known images of a class, the update is the most opposed to the gradient of one that the client trained on. That
needs no likelihood, so it works on several steps of Adam too, which send no sum of gradients.

Source: J. Li, N. Li and B. Ribeiro, "Effective passive membership inference attacks in federated learning against
overparameterized models", ICLR 2023 (their cosine attack). The weights of coordinates are those of a linear
discriminant with a diagonal covariance; an adaptive step has divided each coordinate by its size already.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.attacks.among import example_gradients
from harness.attacks.attacker import ATTACKS, Identifier, validated_attack
from harness.base.errors import UsageError
from harness.observation import Observation

_TINY = 1e-30
# A coordinate in which candidates hardly differ counts no more than one that differs by this share of the usual.
_LEAST = 0.01


@ATTACKS.register("membership")
@validated_attack
class Membership(Identifier):
    """Attack without settings: it knows the network, its weights before, and what was sent."""

    def distances(self, observation: Observation, candidates: Tensor, labels: Tensor, chunk: int = 128) -> Tensor:
        if observation.batches is not None:
            raise UsageError(
                "attack 'membership' needs a gradient of each example, which BatchNorm mixes; use a network without it"
            )
        found = []
        for row, label in enumerate(labels.tolist()):
            seen = observation.take(torch.tensor([row], device=observation.target.device))
            images = candidates[torch.tensor(row, device=candidates.device)]
            found.append(_alignment(replace(seen, clipping=None), images, label, chunk).cpu())
        return torch.stack(found)


def _alignment(seen: Observation, images: Tensor, label: int, chunk: int) -> Tensor:
    """The cosine (C,) of one row's move with the gradients of images (C, ...), each by what all of them differ in.

    Of an adaptive step the signs of the gradients are compared too: of one example, they are the whole step.
    """
    moved = _moved(seen)[0].double()
    adaptive = seen.optimizer.name != "sgd"
    found = torch.zeros(len(images), dtype=torch.float64, device=moved.device)
    parts = torch.arange(len(images)).split(max(2, chunk))
    for signs in (False, True) if adaptive else (False,):

        def made(part: Tensor, signs: bool = signs) -> Tensor:
            own = images[part.to(images.device)]
            gradients = example_gradients(seen, own, torch.full((len(part),), label), chunk)
            return gradients.sign() if signs else gradients

        # Twice, so that no more than a part of them is held at once.
        total, squares = torch.zeros_like(moved), torch.zeros_like(moved)
        for part in parts:
            some = made(part)
            total, squares = total + some.sum(0), squares + some.square().sum(0)
        mean = total / len(images)
        variance = (squares / len(images) - mean.square()).clamp_min(0)
        width = torch.ones_like(mean) if signs else (variance + _LEAST**2 * variance.mean() + _TINY).sqrt()
        towards = moved if adaptive else moved / width
        for part in parts:
            apart = (made(part) - mean) / width
            found[part] += (apart @ towards) / (apart.norm(dim=1) * towards.norm()).clamp_min(_TINY)
    return found


def _moved(seen: Observation) -> Tensor:
    """Return the change of the weights (1, P)."""
    if seen.reading is None:
        return -seen.learning_rate * seen.local_steps * seen.target
    return seen.reading.update(seen.target, seen.weights) if seen.reading.adaptive is None else _step(seen)


def _step(seen: Observation) -> Tensor:
    """Return the change of the weights (1, P) by a single adaptive step, whose gradient is what was read."""
    assert seen.reading is not None and seen.reading.adaptive is not None
    return seen.reading.update(seen.reading.adaptive.step(seen.target), seen.weights)
