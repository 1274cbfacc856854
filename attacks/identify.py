"""Identify: the likelihood of each of some known images, under everything the defense is known to do.

The optimal test between simple hypotheses compares likelihoods (Neyman and Pearson 1933), so where the noise is known
nothing tells more. It is what theorems of reconstruction robustness bound (Balle et al. 2022; Hayes et al. 2023): the
prior is uniform over the candidates. Noise is never estimated by playing the defense for each candidate: the error of
such a level, times as many coordinates as a network has, drowns what candidates differ by.
"""

from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks.among import others_at, public_at, require_several
from harness.attacks.attacker import ATTACKS, Identifier, validated_attack
from harness.attacks.candidates import dummy_gradient, require_gradients
from harness.attacks.residual import improbability, knows_clip, misfit, unread_level
from harness.observation import Observation, Tier


@ATTACKS.register("identify")
@validated_attack
class Identify(Identifier):
    """It has no settings: network, clip, left out coordinates and noise are those of the observation."""

    tier: ClassVar[Tier] = "informed"
    reads_level: ClassVar[bool] = True
    reads_coding: ClassVar[bool] = True
    several: ClassVar[bool] = True

    def distances(self, observation: Observation, candidates: Tensor, labels: Tensor, chunk: int = 128) -> Tensor:
        if observation.examples > 1:
            return _among_several(observation, candidates, labels, chunk)
        rows, count = candidates.shape[:2]
        pairs, parts = torch.arange(rows * count), []
        for part in pairs.split(max(_few(observation, chunk), 2)):
            # A single row takes other kernels on the CPU than the same among many.
            row, column = (part.repeat(2) if len(part) == 1 else part).div(count, rounding_mode="floor"), part % count
            seen = observation.take(row.to(observation.target.device))
            images = candidates[row.to(candidates.device), column.to(candidates.device)]
            own = labels[row.to(labels.device)]
            ways = seen.disguises or (lambda image: image,)
            found = torch.stack([improbability(seen, _gradient(seen, way(images), own)) for way in ways]).amin(0)
            parts.append(found[: len(part)].cpu())
        return torch.cat(parts).reshape(rows, count)

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        if observation.examples > 1:
            return unread_level(observation)  # nobody says what the others were
        return misfit(observation, _gradient(observation, images, labels))


#: Most pairs at once of a network whose rows are evaluated one after another: more copies of its weights gain nothing,
#: and memory that is given back and asked for again takes longer than the gradients.
_LONE = 8


def _few(observation: Observation, chunk: int) -> int:
    return min(chunk, _LONE) if observation.model.evaluates_alone else chunk


def _gradient(observation: Observation, images: Tensor, labels: Tensor) -> Tensor:
    """What (R, *image shape) would have shown, noise apart: (R, P)."""
    target = observation.target
    return dummy_gradient(
        observation,
        images[:, None].to(target),
        labels[:, None].to(target.device),
        knows_clip(observation),
        differentiable=False,
    ).detach()


def _among_several(observation: Observation, candidates: Tensor, labels: Tensor, chunk: int) -> Tensor:
    """The same where others were read together with it. One row at a time: no row depends on how many there are."""
    require_gradients(observation)
    require_several("identify", observation, narrow=True)
    found = []
    for row, label in enumerate(labels.tolist()):
        seen = observation.take(torch.tensor([row], device=observation.target.device))
        others = others_at(seen, label, chunk)
        images = candidates[torch.tensor(row, device=candidates.device)]
        parts = public_at(seen, chunk).made(seen, images, torch.full((len(images),), label), chunk)
        found.append(torch.cat([others.improbability(made).cpu() for made in parts]))
    return torch.stack(found)
