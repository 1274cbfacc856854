"""Distances of the dummy's gradient from the observed one, per row (docs/attacks.md).

The scale-free forms compare directions per clipping group only, so that a defense that merely rescales its gradients
is not mistaken for one that hides them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from harness.base.vectors import LONG, blocks, group_products, group_sums, inner_products

_TINY = 1e-30


class _SquaredDistance(torch.autograd.Function):
    """Squared distance of rows with a derivative that passes over the (R, P) gradients once, not four times."""

    @staticmethod
    def forward(ctx: Any, candidate: Tensor, target: Tensor) -> Tensor:
        difference = candidate - target
        ctx.save_for_backward(difference)
        if difference.shape[1] >= LONG:  # a norm of millions of numbers is off by a thousandth
            return inner_products(difference, difference)
        # One pass, without a tensor of squares.
        return torch.linalg.vector_norm(difference, dim=1).square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return difference.mul_((2 * gradient)[:, None]), None  # nobody meets it again


class _ScaleFreeDistance(torch.autograd.Function):
    """:func:`l2_scale_free` of long gradients, which autograd would pass over a dozen times; differentiable once."""

    @staticmethod
    def forward(ctx: Any, candidate: Tensor, target: Tensor, groups: tuple[int, ...]) -> Tensor:
        inner, own, _ = group_products(candidate, target, groups)
        scale = (inner / own.clamp_min(_TINY)).clamp_min(0.0)
        difference = _scaled(candidate, scale, groups).sub_(target)
        ctx.save_for_backward(difference, scale)
        ctx.groups = groups
        return inner_products(difference, difference)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        difference, scale = ctx.saved_tensors
        return _scaled(difference, scale * (2 * gradient)[:, None], ctx.groups), None, None


class _CosineDistance(torch.autograd.Function):
    """:func:`cosine` of long gradients, which autograd would pass over a dozen times; differentiable once."""

    @staticmethod
    def forward(ctx: Any, candidate: Tensor, target: Tensor, groups: tuple[int, ...]) -> Tensor:
        inner, own, others = group_products(candidate, target, groups)
        lengths = (own * others).clamp_min(_TINY).sqrt()
        ctx.save_for_backward(candidate, target, inner, own, lengths)
        ctx.groups = groups
        return (1 - inner / lengths).mean(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        candidate, target, inner, own, lengths = ctx.saved_tensors
        each = gradient[:, None] / (len(ctx.groups) * lengths)
        # Where a length is next to nothing, it counts as that constant.
        shrinking = torch.where(lengths.square() > _TINY, each * inner / own, 0.0)
        made = torch.empty_like(candidate)
        split = (values.split(ctx.groups, 1) for values in (made, target, candidate))
        for group, nearer, shorter in zip(zip(*split, strict=True), -each.mT, shrinking.mT, strict=True):
            for factor, further, *row in zip(nearer, shorter, *group, strict=True):
                for part, given, own_part in blocks(*row, added_up=False):
                    torch.mul(given, factor, out=part).addcmul_(own_part, further)
        return made, None, None


class _GaussianDistance(torch.autograd.Function):
    """:func:`gaussian_distance` of long gradients, which autograd would pass over half a dozen times in double
    precision; differentiable once."""

    @staticmethod
    def forward(ctx: Any, candidate: Tensor, target: Tensor, deviation: Tensor) -> Tensor:
        difference = target - candidate
        if deviation.shape[1] > 1:
            difference.div_(deviation)
            unit = deviation.new_ones(len(deviation), dtype=torch.float64)
        else:
            unit = deviation[:, 0].double()
        ctx.save_for_backward(difference, deviation, unit)
        return (row_lengths(difference) / unit).square() / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        difference, deviation, unit = ctx.saved_tensors
        if deviation.shape[1] > 1:
            difference.div_(deviation)  # nobody meets it again
        most = torch.finfo(difference.dtype).max
        return difference.mul_(-(gradient / unit.square()).clamp(-most, most)[:, None].to(difference)), None, None


def _scaled(values: Tensor, factors: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Values (R, P) times a factor (R, M) per group."""
    made = torch.empty_like(values)
    for part, given, factor in zip(made.split(groups, 1), values.split(groups, 1), factors.split(1, 1), strict=True):
        torch.mul(given, factor, out=part)
    return made


def row_lengths(vectors: Tensor, order: int = 2) -> Tensor:
    """Norms (R,) of rows, summed in double precision: differences of single nats between millions of them count."""
    long = vectors.shape[1] >= LONG and vectors.device.type == "cpu"
    if order != 2 or not long or vectors.requires_grad:  # the derivative of a root at zero is no number
        return torch.linalg.vector_norm(vectors, order, dim=1, dtype=torch.float64)
    # A long row would be copied in double precision as a whole, which drives all else out of a processor's caches.
    pieces = ((part.double() for (part,) in blocks(row)) for row in vectors)
    return torch.stack([torch.stack([torch.dot(part, part) for part in row]).sum() for row in pieces]).sqrt()


def gaussian_distance(candidate: Tensor, target: Tensor, deviation: Tensor) -> Tensor:
    """Half the squared distance (R,), float64, of gradients (R, P) from a target, in deviations (R, 1) or (R, P).

    Of long gradients differentiable once, by the candidate alone.
    """
    if candidate.shape[1] >= LONG:
        return _GaussianDistance.apply(candidate, target, deviation)
    return row_lengths((target - candidate) / deviation).square() / 2


def l2(candidate: Tensor, target: Tensor) -> Tensor:
    """Squared L2 distance (R,) of gradients (R, P) from a fixed target; differentiable once."""
    return _SquaredDistance.apply(candidate, target)


def l2_scale_free(candidate: Tensor, target: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Squared distance (R,) after the best non-negative rescaling of each group of the candidate.

    The scale is treated as a constant in the derivative: at its optimum the derivative through it vanishes.
    """
    if candidate.shape[1] >= LONG:
        return _ScaleFreeDistance.apply(candidate, target, groups)
    with torch.no_grad():
        inner = group_sums(candidate * target, groups)
        scale = (inner / group_sums(candidate.square(), groups).clamp_min(_TINY)).clamp_min(0.0)
    pieces = zip(candidate.split(groups, 1), target.split(groups, 1), scale.split(1, 1), strict=True)
    return torch.stack([(s * a - g).square().sum(1) for a, g, s in pieces], dim=1).sum(1)


def cosine(candidate: Tensor, target: Tensor, groups: tuple[int, ...]) -> Tensor:
    """One minus the cosine similarity (R,), averaged over groups; one group is the plain cosine distance."""
    if candidate.shape[1] >= LONG:
        return _CosineDistance.apply(candidate, target, groups)
    inner = group_sums(candidate * target, groups)
    lengths = group_sums(candidate.square(), groups) * group_sums(target.square(), groups)
    return (1 - inner / lengths.clamp_min(_TINY).sqrt()).mean(1)


def observed_only(candidate: Tensor, target: Tensor) -> Tensor:
    """Candidate gradients (R, P) with zeros wherever the target is exactly zero (docs/attacks.md).

    A defense that leaves coordinates out puts zeros in their place, which say nothing about the true gradient. With
    zeros in the candidate too they count neither in a distance nor in a scale or length, of any objective above.
    """
    return candidate.where(target != 0, 0.0)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels (R,), horizontal plus vertical, of images (R, n, C, H, W).

    The features of table rows, images of height 1, have no neighbours: it is 0 for them.
    """
    if images.shape[-2] == 1:
        return images.new_zeros(len(images))
    horizontal = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).mean(1)
    vertical = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    return horizontal + vertical


Matching = Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]

RAW: dict[str, Matching] = {
    "l2": lambda candidate, target, groups: l2(candidate, target),
    "cosine": lambda candidate, target, groups: cosine(candidate, target, (candidate.shape[1],)),
}
SCALE_FREE: dict[str, Matching] = {"l2": l2_scale_free, "cosine": cosine}
