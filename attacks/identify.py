"""Identify: the likelihood of each of some known images, under everything the defense is known to do.

The optimal test between simple hypotheses compares likelihoods (Neyman and Pearson 1933), so where the noise is known
nothing tells more. It is what theorems of reconstruction robustness bound (Balle et al. 2022; Hayes et al. 2023): the
prior is uniform over the candidates. Noise is never estimated by playing the defense for each candidate: the error of
such a level, times as many coordinates as a network has, drowns what candidates differ by.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks.among import others_at, public_at, require_several
from harness.attacks.attacker import ATTACKS, Identifier, validated_attack
from harness.attacks.candidates import dummy_gradient, require_gradients
from harness.attacks.residual import (
    deviation_of,
    improbability,
    is_of_one_level,
    knows_clip,
    misfit,
    unread_level,
)
from harness.attacks.stages import adaptive_step
from harness.base.vectors import example_factors, group_products
from harness.models.side_by_side import side_by_side
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
        if _is_of_products(observation):
            return _by_products(observation, candidates, labels, _few(observation, chunk))
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


#: Of the length of what was read, expected of its noise alone.
_MOST = 0.7


def _few(observation: Observation, chunk: int) -> int:
    return min(chunk, _LONE) if observation.model.evaluates_alone else chunk


def _is_of_products(observation: Observation) -> bool:
    """Whether one gradient is compared that nothing was done to but a clip and Gaussian noise of one level, which is
    most of what was read, and of so many numbers that passes over them cost most."""
    changed = (
        observation.carrying, observation.cut, observation.coding, observation.certainty, observation.batches,
        adaptive_step(observation), *observation.disguises,
    )  # fmt: skip
    alone = observation.model.evaluates_alone and observation.model.layout.rounds == 1
    plain = is_of_one_level(observation) and not observation.sparse and all(one is None for one in changed)
    clipped = observation.clipping is None or knows_clip(observation)
    of_one_step = observation.local_steps == 1 and not observation.by_steps
    if not (alone and plain and clipped and of_one_step and observation.target.device.type == "cpu"):
        return False
    # Sums of single precision tell candidates apart by a thousandth of a gradient, which weaker noise might show.
    expected = deviation_of(observation, sharp=True)[:, 0] * math.sqrt(observation.target.shape[1])
    return bool((expected >= _MOST * torch.linalg.vector_norm(observation.target, dim=1)).all())


def _by_products(observation: Observation, candidates: Tensor, labels: Tensor, few: int) -> Tensor:
    """The same from inner products alone: -2 <g, t> + <g, g> of a clipped gradient g and what was read t, by twice the
    variance. No gradient is clipped, or compared with anything, number by number."""
    rows, model, clipping = range(len(candidates)), observation.model, observation.clipping
    variances = deviation_of(observation, sharp=True)[:, 0].double().square()
    each = max(1, few // torch.get_num_threads())

    def of_part(part: tuple[int, Tensor]) -> Tensor:
        row, places = part
        images = candidates[row, places.to(candidates.device)].to(observation.target)
        classes = labels[row].to(images.device).expand(1, len(places))
        made = model.per_example_gradients(observation.weights[row : row + 1], images[None], classes)[0].detach()
        read = observation.target[row].expand_as(made)
        both, own, _ = (values.double() for values in group_products(made, read, model.layout.sizes))
        if clipping is not None and clipping.bound is not None:
            factors = example_factors(own.sqrt(), clipping.bound, clipping.grouping)
            both, own = both * factors, own * factors.square()
        return (own - 2 * both).sum(1) / (2 * variances[row])

    parts = [(row, places) for row in rows for places in torch.arange(candidates.shape[1]).split(each)]
    return torch.cat(side_by_side(of_part, parts)).reshape(candidates.shape[:2])


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
