"""Patches: a vision transformer with learned position embeddings reveals its image in closed form.

Token p is W x_p + b + e_p. The gradient of its place e_p is the token's error d_p, and that of W is the sum of d_p x_p
over the patches. As long as the errors are linearly independent, least squares gives every x_p. Idea: Lu et al.,
"APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers" (CVPR 2022), who solve it one layer later.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor, nn
from torch.nn import functional

from harness.attacks.analytic import Analytic
from harness.attacks.attack import ATTACKS, Attack, Dummy, validated_attack
from harness.attacks.candidates import require_gradients
from harness.attacks.token_layers import Seen, rank_of, require_a_head, stopped_at, tried_gradients
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode
from harness.observation import Observation


@ATTACKS.register("patches")
@validated_attack
class Patches(Analytic):
    """Only the scale of the closed form is optimised, and only where a clip of each tensor rescales weights and places
    differently. Elsewhere there is none to find, and no gradient of the network is needed."""

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        """The logarithm of the scale (R, 1): 0, or what makes the brightest pixel 1 where tensors are clipped apart.

        Raises:
            UsageError: more than one example is hidden, or the network does not place patches by learned rows.
        """
        if observation.unknowns > 1:
            raise UsageError(
                f"attack 'patches' reads one example per observation, not {observation.unknowns}; use --batch-size 1 "
                "and one local step"
            )
        require_gradients(observation)
        brightest = embedding_of(observation.model).brightest
        require_a_head(observation, "patches")
        if not _scale_is_open(observation):
            return observation.target.new_zeros(len(keys), 1)
        return (brightest / patches_read(observation).abs().amax((1, 2)).clamp_min(1e-12)).log()[:, None]

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        assert labels is not None
        images = closed_form(observation, position.exp())
        return Dummy(images.reshape(len(position), 1, *observation.model.image_shape), labels)

    def matching(self, observation: Observation, dummy: Dummy) -> Tensor:
        """Return the matching loss (R,) of :meth:`Attack.matching` where a scale is sought. Return elsewhere the share
        (R,) of the layer's gradient that no patches explain.

        Where that share is large, as under noise, no scale makes the image right, and none is sought.
        """
        loss = unexplained(observation) + 0.0 * dummy.images.flatten(1).sum(1)
        rows = (loss < _EXPLAINED).nonzero()[:, 0]
        if not _scale_is_open(observation) or not len(rows):
            return loss
        read = Dummy(dummy.images[rows], dummy.targets[rows])
        return loss.index_copy(0, rows, Attack.matching(self, observation.take(rows), read))

    def effort(self, observation: Observation) -> int:
        """The gradient that was read is what the images are computed from."""
        return 1


#: Share of the squared gradient of W below which rounding alone is unexplained.
_EXPLAINED = 1e-3


def _scale_is_open(observation: Observation) -> bool:
    return observation.clipping is not None and observation.clipping.grouping != "whole"


def closed_form(observation: Observation, scale: Tensor | float = 1.0) -> Tensor:
    """Images (R, D) of the patches that were read, times a scale (R, 1); 0 if unreadable. A pixel in no patch, as at
    the edge of an image that patches do not divide, is like the nearest one that is in one."""
    embedding, read = embedding_of(observation.model), patches_read(observation)
    first, of_one = embedding.scaling.to(read)
    found = ((read.flatten(1) * scale).unflatten(1, first.shape) - first) / of_one
    images = observation.target.new_zeros(len(read), math.prod(observation.model.image_shape))
    images[:, embedding.pixels.to(images.device).flatten()] = found.flatten(1).to(images)
    if embedding.pixels.numel() < images.shape[1]:
        images = images[:, _nearest_read(embedding, observation.model.image_shape).to(images.device)]
    return images.where(read.flatten(1).any(1, keepdim=True), 0.0)


def _nearest_read(embedding: "PatchEmbedding", shape: tuple[int, ...]) -> Tensor:
    """Return for each pixel (D,) of an image of a shape the nearest one of its channel that is in a patch."""
    missing = torch.ones(shape).flatten().index_fill(0, embedding.pixels.flatten(), 0.0).view(shape)
    sides = sum(shape), 1, 1  # no other channel is near
    places: Any = distance_transform_edt(missing.numpy(), sides, return_distances=False, return_indices=True)
    return torch.from_numpy(np.ravel_multi_index(tuple(places), shape).flatten())


def patches_read(observation: Observation) -> Tensor:
    """Return what the layer was given (R, N, F): x_p at least distance of sum_p d_p x_p from its gradient; 0 if
    unreadable.

    float64 inside: errors of neighbouring patches are nearly parallel.
    """
    errors, mixed, finite = _read(observation, embedding_of(observation.model))
    read = torch.linalg.pinv(errors.mT) @ mixed
    return read.where(finite[:, None, None], 0.0).to(observation.target)


def unexplained(observation: Observation) -> Tensor:
    """The share (R,) of the squared gradient of W that is no sum of errors times patches; no number if unreadable."""
    errors, mixed, finite = _read(observation, embedding_of(observation.model))
    left = mixed - errors.mT @ (torch.linalg.pinv(errors.mT) @ mixed)
    shares = left.square().sum((1, 2)) / mixed.square().sum((1, 2)).clamp_min(1e-300)
    return shares.where(finite, torch.nan).to(observation.target)


def _read(observation: Observation, embedding: "PatchEmbedding") -> tuple[Tensor, Tensor, Tensor]:
    """Errors (R, N, width) of the patches, the gradient (R, width, F) of W, and which rows (R,) are finite."""
    parts = observation.model.layout.split(observation.target)
    errors = parts[embedding.places].flatten(1).unflatten(1, (-1, embedding.width))
    errors = errors[:, embedding.first : embedding.first + embedding.patches].double()
    mixed = parts[embedding.weight].flatten(2).double()
    finite = errors.isfinite().all(2).all(1) & mixed.isfinite().all(2).all(1)
    return errors.nan_to_num(0.0, 0.0, 0.0), mixed.nan_to_num(0.0, 0.0, 0.0), finite


@dataclass(frozen=True)
class PatchEmbedding:
    """A linear map of patches, followed by an added parameter with one row per token.

    Attributes:
        weight, places: names of the two parameters.
        first: the row of ``places`` that belongs to the first patch; rows before it are a class token's.
        pixels: (N, F) which pixel of the flat image is which number of which patch.
        scaling: (2, N, F) what the layer is given is the first plus the second times the pixel, such as a network that
            scales images itself gives it.
        width: numbers of a token.
    """

    weight: str
    places: str
    first: int
    pixels: Tensor
    scaling: Tensor
    width: int

    @property
    def patches(self) -> int:
        """Number of patches."""
        return len(self.pixels)

    @property
    def brightest(self) -> float:
        """The largest number that an image in [0, 1] gives the layer, up to its sign."""
        return float(torch.stack([self.scaling[0], self.scaling.sum(0)]).abs().max())


@lru_cache(maxsize=2)
def embedding_of(model: RowModel) -> PatchEmbedding:
    """Find it by what it computes, not by its name.

    Raises:
        UsageError: there is none, its places are not learned, or it has more patches than their gradients have
            directions: as many as a token has numbers, less one where all that reads tokens normalises them.
    """
    # The network itself comes first where it owns parameters, such as places.
    named = ((prefix, layer) for prefix, layer in model.called_layers() if hasattr(layer, "weight"))
    prefix, layer = next(named, ("", model.plain_module))
    weight, found = f"{prefix}weight", _pixels_of_patches(model, layer)
    if found is None or weight not in model.layout.names:
        raise _inapplicable(model, "whose first layer reads patches that do not overlap, and is trained")
    pixels, scaling = found
    image = torch.rand(model.image_shape, generator=generator("patches", "image"))
    gradients, _ = tried_gradients(model, image)
    count, width = len(pixels), len(gradients[weight])
    if count > width:
        raise _inapplicable(model, f"of at most as many patches as a token has numbers, not {count} of {width}")
    mixed = gradients.pop(weight).flatten(1)
    read = (scaling[0] + scaling[1] * image.flatten()[pixels]).to(mixed)
    for name, gradient in gradients.items():
        if gradient.dim() < 2 or gradient.shape[-1] != width or not 0 <= gradient.numel() // width - count <= _OTHERS:
            continue
        errors = gradient.reshape(-1, width)
        for first in range(len(errors) - count + 1):
            own = errors[first : first + count]
            if (own.T @ read - mixed).norm() <= _AGREES * mixed.norm():
                if rank_of(own) < count:  # a layer norm takes the mean of a token's numbers away
                    apart = f"whose patches' gradients are independent, not {count} of which {rank_of(own)} are"
                    raise _inapplicable(model, apart)
                return PatchEmbedding(weight, name, first, pixels, scaling, width)
    raise _inapplicable(model, "that learns a row for each place of a patch")


#: Most tokens that are no patch, such as a class token; and how well products of float32 agree.
_OTHERS, _AGREES = 8, 1e-3


def _pixels_of_patches(model: RowModel, layer: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Return which pixel (N, F) of the flat image the layer reads at each place, and how it is scaled (2, N, F). Return
    None where the layer does not read patches one by one."""
    first = next(model.plain_module.parameters())
    random = torch.rand(model.image_shape, generator=generator("patches", "pixels"))
    numbered = torch.arange(float(random.numel())).reshape(random.shape)
    tried = torch.stack([torch.zeros_like(random), torch.ones_like(random), numbered, random]).to(first)
    with torch.no_grad(), in_evaluation_mode(model.plain_module), stopped_at(layer) as given, suppress(Seen):
        model.plain_module(tried)
    read = _patches_given(layer, given[0].double().cpu()) if given else None
    if read is None:
        return None
    none, one, number, drawn = read
    pixels = ((number - none) / (one - none)).nan_to_num(-1.0, -1.0, -1.0).round().long()
    known = random.flatten().double()[pixels.clamp(0, random.numel() - 1)]
    wrong = (pixels < 0) | (pixels >= random.numel()) | ((none + (one - none) * known - drawn).abs() > _AGREES)
    return None if wrong.any() else (pixels, torch.stack([none, one - none]))


def _patches_given(layer: nn.Module, given: Tensor) -> Tensor | None:
    """The patches (B, N, F) of what a layer is given; None where it does not multiply each by its weight."""
    if isinstance(layer, nn.Linear):
        return given if given.dim() == 3 else None
    if not isinstance(layer, nn.Conv2d) or given.dim() != 4 or layer.stride != layer.kernel_size:
        return None
    plain = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding in ((0, 0), "valid")
    return functional.unfold(given, layer.kernel_size, stride=layer.stride).mT if plain else None


def _inapplicable(model: RowModel, needed: str) -> UsageError:
    return UsageError(
        f"attack 'patches' needs a vision transformer {needed}, which model {model.name!r} is not; use --attack auto"
    )
