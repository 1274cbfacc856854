"""MAP: the most probable image, given the observation, its known noise, and public data of the same kind.

The prior is a Gaussian over the examples of a class, the noise has a known law: the attack minimises their negative
log density. Everything a defense does without noise (clipping, leaving coordinates out) is done to the dummy's gradient
too. See docs/attackers.md.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.attack import Attack, Dummy, Lean, pixel_count
from harness.attacks.attacker import ATTACKS, validated_attack
from harness.attacks.candidates import EXAMPLES_OF_FORMS, dummy_gradient, likely_disguises
from harness.attacks.labels import open_labels
from harness.attacks.lbfgs import LBFGS
from harness.attacks.residual import knows_clip, misfit, negative_log_likelihood
from harness.attacks.soft_words import SoftTexts, open_starts, require_one_text, softened
from harness.base.errors import UsageError
from harness.base.randomness import normal_rows
from harness.base.ranges import Count, CountOrNone, NonNegative
from harness.observation import Observation, Tier

# Where nothing is noisy, how near the gradient has to come, relative to its root mean square, and the corner of
# Laplace's density in deviations.
_FLOOR, _CORNER = 3e-3, 0.1
# As many numbers of gradients are held at once where the residual is looked at: 128 MiB.
_HELD = 2**25


@dataclass(frozen=True)
class Placed(Dummy):
    """Dummy data with the whitened coordinates (R, n, D) that they were placed at, and images as they were changed."""

    coordinates: Tensor
    disguised: Tensor

    @property
    def shown(self) -> Tensor:
        return self.disguised


@ATTACKS.register("map")
@validated_attack
class MaximumAPosteriori(Attack):
    """L-BFGS in coordinates in which the prior is standard normal, from the class means.

    ``label_starts``: of one example, as many of the classes that noise leaves open are tried, the objective chooses.
    Of an image that was changed before its gradient, by one of some known changes, as many of these are tried. Of a
    text whose length nothing tells, as many lengths. How texts are read, ``soft_words`` says.
    """

    objective: Literal["likelihood"] = "likelihood"
    scale: Literal["known_clip"] = "known_clip"
    masked: Literal["auto"] = "auto"
    init: Literal["prior"] = "prior"
    box: Literal[False] = False
    max_iterations: Count = 40
    label_starts: Count = 3
    patience: CountOrNone = 1
    patience_drop: NonNegative = 0.0
    loss_stop: Annotated[float, Field(ge=0, le=0)] = 0.0
    tier: ClassVar[Tier] = "informed"
    reads_level: ClassVar[bool] = True
    by_vectors: ClassVar[bool] = True
    standstill: ClassVar[tuple[int, float]] = (1, 1e-4)

    def optimizer(self) -> LBFGS:
        return LBFGS(descend=True)

    @property
    def starts(self) -> int:
        return self.restarts * self.label_starts

    def labels_of_starts(self, observation: Observation) -> Tensor | None:
        if _is_of_texts(observation):
            require_one_text(observation)  # before any work
        labels = self.labels(observation)
        assert labels is not None
        tried = labels.new_full((observation.rows, self.label_starts, observation.examples), -1)
        tried[:, 0] = labels
        if _is_disguised(observation):
            tried[:] = labels[:, None]
        elif self._reads_one_bias(observation):
            likely = open_labels(observation, self.label_starts)
            tried[:, : likely.shape[1], 0] = likely
        tried = open_starts(observation, tried) if _is_of_texts(observation) else tried
        return tried.repeat_interleave(self.restarts, 1)

    def _reads_one_bias(self, observation: Observation) -> bool:
        if observation.labels is not None or observation.examples > 1 or self.label_rule not in ("auto", "bias"):
            return False
        return observation.model.last_linear()[1] is not None

    def read_as(self, observation: Observation) -> Lean | None:
        return softened(observation) if _is_of_texts(observation) else None

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        if observation.prior is None:
            raise UsageError(
                "attack 'map' needs public data; use --prior auto, or --prior FILE.npz with data of your own"
            )
        size = pixel_count(observation)
        start = observation.target.new_zeros(len(keys), size)
        drawn = [row for row, key in enumerate(keys) if observation.examples > 1 or int(key[-1]) % self.restarts]
        if drawn:
            start[drawn] = normal_rows([("map", *keys[row]) for row in drawn], (size,), start)
        if isinstance(observation, SoftTexts):
            labels = self.labels(observation)
            assert labels is not None
            start[:, -observation.model.image_shape[-1] :] = observation.used(
                labels[:, 0], [int(key[-1]) // self.restarts for key in keys]
            ).to(start)
        return torch.cat([start, self._forms(observation, keys)[:, None]], 1) if _is_disguised(observation) else start

    def _forms(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        """The change (R,) of images that each start takes for the one that was made: as likely as its place says."""
        labels, victims = self.labels(observation), {key[:-1]: row for row, key in enumerate(keys)}
        assert labels is not None
        rows = torch.tensor(list(victims.values()), device=observation.target.device)
        order = likely_disguises(observation.take(rows), labels[rows, 0])
        own = dict(zip(victims, order.tolist(), strict=True))
        made = [own[key[:-1]][int(key[-1]) // self.restarts % order.shape[1]] for key in keys]
        return torch.tensor(made).to(observation.target)

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        assert labels is not None and observation.prior is not None
        if isinstance(observation, SoftTexts):
            coordinates, texts, given = observation.placed(position, labels)
            return Placed(texts, labels, coordinates, given)
        whole, forms = position, None
        if _is_disguised(observation):
            whole, forms = position[:, :-1], position[:, -1].detach().long().tolist()
        coordinates = whole.reshape(len(position), observation.unknowns, -1)
        shape = (len(position), observation.examples, *observation.model.image_shape)
        images = observation.prior.place(observation.in_places(coordinates), labels).reshape(shape)
        if forms is None:
            return Placed(images, labels, coordinates, images)
        made = [observation.disguises[form](image) for form, image in zip(forms, images, strict=True)]
        return Placed(images, labels, coordinates, torch.stack(made))

    def position(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        if observation.prior is None or _is_disguised(observation) or _is_of_texts(observation):
            return None
        return observation.prior.coordinates(images.flatten(2), labels).flatten(1)

    def effort(self, observation: Observation) -> int:
        whole = EXAMPLES_OF_FORMS * len(observation.disguises) if _is_disguised(observation) else 0
        return whole // self.starts  # once for all starts

    def stop_below(self, observation: Observation) -> Tensor:
        """Without noise, where all of the gradient is explained; else no loss, which may be negative, is the end."""
        enough = (
            -math.inf if observation.noise or isinstance(observation, SoftTexts) else float(observation.target.shape[1])
        )
        return torch.full_like(observation.target[:, 0], enough)

    def clips(self, observation: Observation) -> bool:
        return knows_clip(observation)

    def mismatch(self, observation: Observation, candidate: Tensor, dummy: Dummy) -> Tensor:
        assert isinstance(dummy, Placed)
        unlikely = negative_log_likelihood(observation, candidate, _FLOOR, _CORNER, lead=True).to(candidate.dtype)
        return unlikely + dummy.coordinates.square().sum((1, 2)) / 2

    def solved_rows(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return which rows (R,) of texts have words that explain all; None for images, and under noise."""
        if not isinstance(observation, SoftTexts) or observation.noise is not None:
            return None
        dummy = self.dummy(observation, position, labels)
        return observation.explained(dummy.images, dummy.targets)

    def loss_of_shown(self, observation: Observation, dummy: Dummy) -> Tensor | None:
        """Return the losses (R,) of the words of texts themselves, since vectors explain more than any words do; None
        for images."""
        if not isinstance(observation, SoftTexts):
            return None
        return observation.unlikely(dummy.images, dummy.targets.clamp_min(0))

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        parts, held = [], observation.target.shape[1] * observation.examples
        for rows in torch.arange(len(images)).split(max(1, _HELD // held)):
            seen = observation.take(rows.to(observation.target.device))
            made, classes = images[rows].to(seen.target), labels[rows].to(seen.target.device)
            parts.append(dummy_gradient(seen, made, classes, self.clips(seen), differentiable=False).detach())
        return misfit(observation, torch.cat(parts), pixel_count(observation), best=False)


def _is_of_texts(observation: Observation) -> bool:
    return observation.model.vocabulary is not None


def _is_disguised(observation: Observation) -> bool:
    """Return whether one image was read, after one of some known changes."""
    return bool(observation.disguises) and observation.examples == 1
