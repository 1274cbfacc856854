"""Identify: the likelihood of each candidate image, given all that is known of the defense.

The optimal test between simple hypotheses compares likelihoods (Neyman and Pearson 1933), so where the noise is known
nothing tells more. It is what theorems of reconstruction robustness bound (Balle et al. 2022; Hayes et al. 2023): the
prior is uniform over the candidates. Noise is never estimated by playing the defense for each candidate: the error of
such a level, times as many coordinates as a network has, exceeds what candidates differ by.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks.among import others_at, public_at, require_several
from harness.attacks.attacker import ATTACKS, Identifier, validated_attack
from harness.attacks.candidates import dummy_gradient, require_gradients
from harness.attacks.objectives import row_lengths
from harness.attacks.residual import deviation_of, improbability, is_of_one_level, knows_clip, misfit, unread_level
from harness.attacks.stages import adaptive_step
from harness.base.vectors import example_factors, group_products
from harness.base.words import PAD, tokens_of
from harness.models.side_by_side import side_by_side
from harness.observation import Observation, Tier


@ATTACKS.register("identify")
@validated_attack
class Identify(Identifier):
    """Attack without settings: network, clip, left out coordinates and noise are those of the observation."""

    tier: ClassVar[Tier] = "informed"
    reads_level: ClassVar[bool] = True
    reads_coding: ClassVar[bool] = True
    several: ClassVar[bool] = True

    def distances(self, observation: Observation, candidates: Tensor, labels: Tensor, chunk: int = 128) -> Tensor:
        """See :meth:`Identifier.distances`. Of one example, ``labels`` may also be of each candidate (R, C)."""
        if observation.unknowns > 1:
            return _among_several(observation, candidates, labels, chunk)
        rows, count = candidates.shape[:2]
        labels = labels[:, None].expand(-1, count) if labels.dim() == 1 else labels
        if observation.model.evaluates_alone:
            return _row_by_row(observation, candidates, labels)
        pairs, parts = torch.arange(rows * count), []
        for part in pairs.split(max(chunk, 2)):
            # A single row takes other kernels on the CPU than the same among many.
            row, column = (part.repeat(2) if len(part) == 1 else part).div(count, rounding_mode="floor"), part % count
            seen = observation.take(row.to(observation.target.device))
            images = candidates[row.to(candidates.device), column.to(candidates.device)]
            own = labels[row.to(labels.device), column.to(labels.device)]
            parts.append(_improbability(seen, images, own)[: len(part)].cpu())
        return torch.cat(parts).reshape(rows, count)

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        if observation.unknowns > 1:
            return unread_level(observation)  # nobody says what the others were
        return misfit(observation, _gradient(observation, images, labels))


#: Of the length of what was read, expected of its noise alone.
_MOST = 0.7
#: Of that length's square: within so much of the least distance, gradients tell more closely than products do.
_ROUNDING = 1e-3
#: So many groups of candidates are told by their products at once, which take little memory.
_GROUPS = 4


def _row_by_row(observation: Observation, candidates: Tensor, labels: Tensor) -> Tensor:
    """Distances (R, C) of candidates with labels (R, C), where rows are evaluated one after another: those of one row
    share its weights."""
    model, plain, strong = observation.model, _is_plain(observation), _is_strong(observation)
    told = torch.empty(candidates.shape[:2], dtype=torch.float64)

    def given(row: int, places: Tensor) -> tuple[Tensor, Tensor]:
        images = candidates[row, places.to(candidates.device)].to(observation.target)
        return images, labels[row, places.to(labels.device)].to(images.device)

    def by_gradients(row: int, images: Tensor, own: Tensor) -> Tensor:
        if plain:
            return _by_tensor(observation, row, images, own, strong)
        # A single row takes other kernels on the CPU than the same among many.
        twice = torch.arange(max(2, len(images)), device=images.device) % len(images)
        made = _improbability(observation.repeated(row, len(twice)), images[twice], own[twice])
        return made[: len(images)].cpu()

    def by_products(row: int, images: Tensor, own: Tensor) -> Tensor:
        return _by_products(observation, row, images, own)

    def tell(chosen: list[Tensor], way: Callable[[int, Tensor, Tensor], Tensor], together: int) -> None:
        parts = [(row, places) for row, own in enumerate(chosen) if len(own) for places in own.split(together)]
        works = side_by_side(
            lambda part: way(part[0], *given(*part)), parts, apart=observation.target.device.type == "cpu"
        )
        for (row, places), distances in zip(parts, works, strict=True):
            told[row, places] = distances

    orders = [_by_length(own) if model.vocabulary else torch.arange(len(own)) for own in candidates]
    # Where products alone tell them, even two take less time than their gradients.
    many = candidates.shape[1] >= (2 if strong else model.group)
    if not plain or not many or not model.tells_products(observation.weights[0], *given(0, orders[0][: model.group])):
        tell(orders, by_gradients, model.group)
        return told
    tell(orders, by_products, model.group * _GROUPS)
    if not strong:
        near = _near(observation, told)
        tell([order[own[order]] for order, own in zip(orders, near, strict=True)], by_gradients, model.group)
    return told


def _near(observation: Observation, told: Tensor) -> Tensor:
    """Return which candidates (R, C) are about as probable as the most probable one, by distances (R, C) with some
    rounding."""
    lengths = torch.linalg.vector_norm(observation.target.double(), dim=1)
    rounding = _ROUNDING * lengths.square() / (2 * _variance(observation))
    return told <= (told.amin(1) + rounding.cpu())[:, None]


def _by_length(texts: Tensor) -> Tensor:
    """The places (C,) of texts (C, 1, BITS, T), short ones first, so that those of a group have few empty places."""
    return (tokens_of(texts) != PAD).sum(1).argsort(stable=True).cpu()


def _improbability(seen: Observation, images: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood (R,) of images (R, ...) in the form that makes what was read most likely."""
    ways = seen.disguises or (lambda image: image,)
    return torch.stack([improbability(seen, _gradient(seen, way(images), labels)) for way in ways]).amin(0)


def _is_plain(observation: Observation) -> bool:
    """Return whether one gradient is compared that nothing was done to but a clip and Gaussian noise of one level, if
    any."""
    changed = (
        observation.carrying, observation.cut, observation.coding, observation.certainty, observation.batches,
        adaptive_step(observation), *observation.disguises,
    )  # fmt: skip
    plain = is_of_one_level(observation) and not observation.sparse and all(one is None for one in changed)
    clipped = observation.clipping is None or knows_clip(observation)
    of_one_step = observation.local_steps == 1 and not observation.by_steps and observation.model.layout.rounds == 1
    return plain and clipped and of_one_step and observation.target.device.type == "cpu"


def _is_strong(observation: Observation) -> bool:
    """Return whether noise is most of what was read: sums of single precision tell candidates apart by a thousandth of
    a gradient, which weaker noise might show."""
    expected = deviation_of(observation, sharp=True)[:, 0] * math.sqrt(observation.target.shape[1])
    return bool((expected >= _MOST * torch.linalg.vector_norm(observation.target, dim=1)).all())


def _variance(observation: Observation) -> Tensor:
    """That of each row's noise (R,)."""
    return deviation_of(observation, sharp=True)[:, 0].double().square()


def _by_products(observation: Observation, row: int, images: Tensor, labels: Tensor) -> Tensor:
    """Return what :func:`_by_tensor` gives, by inner products alone that need no gradient of any tensor."""
    both, own = observation.model.gradient_products(observation.weights[row], images, labels, observation.target[row])
    both, own = both.double(), own.double()
    factors = _clipped_by(observation, own)
    return (own * factors.square() - 2 * both * factors).sum(1) / (2 * _variance(observation)[row])


def _clipped_by(observation: Observation, squares: Tensor) -> Tensor:
    """The factors (C, M) of the known clip, by squared lengths (C, M) of gradients, tensor by tensor."""
    clipping = observation.clipping
    if clipping is None or clipping.bound is None:
        return torch.ones_like(squares)
    return example_factors(squares.sqrt(), clipping.bound, clipping.grouping)


def _by_tensor(observation: Observation, row: int, images: Tensor, labels: Tensor, strong: bool) -> Tensor:
    """The distances of candidates (C, ...) of a row, of which no whole gradient is written down: |t - g|^2 - |t|^2 over
    twice the variance, by a clipped gradient g and what was read t. In ``strong`` noise by inner products alone."""
    model, sizes = observation.model, observation.model.layout.sizes
    made = model.gradients_by_tensor(observation.weights[row], images, labels)
    read = [one[None] for one in observation.target[row].split(sizes)]
    if strong:
        pairs = zip(made, read, strict=True)
        products = [group_products(part, one.expand_as(part), part.shape[1:])[:2] for part, one in pairs]
        both, own = (torch.cat(ones, 1).double() for ones in zip(*products, strict=True))
    else:
        both, own = None, torch.stack([row_lengths(part).square() for part in made], 1)
    factors = _clipped_by(observation, own)
    if both is not None:
        more = own * factors.square() - 2 * both * factors
    else:
        clipped = (part * factor for part, factor in zip(made, factors.to(made[0]).split(1, 1), strict=True))
        pairs = zip(clipped, read, strict=True)
        more = torch.stack([row_lengths(one - part).square() - row_lengths(one).square() for part, one in pairs], 1)
    return more.sum(1) / (2 * _variance(observation)[row])


def _gradient(observation: Observation, images: Tensor, labels: Tensor) -> Tensor:
    """Return what (R, *image shape) would have shown, noise apart: (R, P)."""
    target = observation.target
    return dummy_gradient(
        observation,
        observation.in_places(images[:, None].to(target)),
        observation.in_places(labels[:, None].to(target.device)),
        knows_clip(observation),
        differentiable=False,
    ).detach()


def _among_several(observation: Observation, candidates: Tensor, labels: Tensor, chunk: int) -> Tensor:
    """Return the distances of :meth:`Identify.distances` where others were read together with the example. Compute one
    row at a time: no row depends on how many there are."""
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
