"""Common part of attacks that reconstruct. An author overrides defaults, and where needed a few methods."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.attacks.adam import Adam
from harness.attacks.attacker import ATTACKS, Attacker, validated_attack
from harness.attacks.candidates import dummy_gradient, require_gradients
from harness.attacks.labels import infer_labels
from harness.attacks.lbfgs import LBFGS
from harness.attacks.objectives import RAW, SCALE_FREE, observed_only, total_variation
from harness.attacks.stages import (
    SIGNS_BOX,
    SIGNS_TV,
    Stage,
    blur_of,
    excused,
    is_unrolled,
    least_share,
    signs,
    stages_of,
)
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.base.ranges import Count, CountOrNone, NonNegative, Repeats
from harness.observation import Observation

# Initial dummy images (docs/attacks.md).
#
# Every scheme draws one stream per row, so a row's start does not depend on how rows are grouped.

ImageShape = tuple[int, ...]
Lean = Callable[[Observation], Observation]
"""Makes of some rows of an observation what is attacked in their place."""


def _uniform(shape: ImageShape, random: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=random)


def _pattern(parts: int) -> Callable[[ImageShape, torch.Generator], Tensor]:
    def scheme(shape: ImageShape, random: torch.Generator) -> Tensor:
        *lead, height, width = shape
        # A table row can only be divided along its features; its patch is the same share of it all the same.
        down, across = (1, parts * parts) if height == 1 else (parts, parts)
        patch = torch.rand((*lead, math.ceil(height / down), math.ceil(width / across)), generator=random)
        return patch.repeat(*[1] * len(lead), down, across)[..., :height, :width]

    return scheme


def _constant(value: float) -> Callable[[ImageShape, torch.Generator], Tensor]:
    return lambda shape, random: torch.full(shape, value)


def _channel(index: int) -> Callable[[ImageShape, torch.Generator], Tensor]:
    def scheme(shape: ImageShape, random: torch.Generator) -> Tensor:
        if shape[-3] != 3:
            raise UsageError("initialisations 'R', 'G' and 'B' need colour images; use init=pattern-1/4")
        image = torch.zeros(shape)
        image[..., index, :, :] = 1.0
        return image

    return scheme


INITIALISATIONS: dict[str, Callable[[ImageShape, torch.Generator], Tensor]] = {
    "uniform": _uniform,
    "gauss": lambda shape, random: torch.randn(shape, generator=random),
    "pattern-1/4": _pattern(2),
    "pattern-1/16": _pattern(4),
    "pattern-1/64": _pattern(8),
    "dark": _constant(0.0),
    "light": _constant(1.0),
    "R": _channel(0),
    "G": _channel(1),
    "B": _channel(2),
}


def initial_images(scheme: str, keys: list[tuple[int | str, ...]], shape: ImageShape) -> Tensor:
    """Dummy images (R, *shape), one random stream per key.

    Raises:
        UsageError: the scheme is unknown or does not fit the images.
    """
    if scheme not in INITIALISATIONS:
        raise UsageError(f"unknown initialisation {scheme!r}; known: {', '.join(INITIALISATIONS)}")
    return torch.stack([INITIALISATIONS[scheme](shape, generator("init", *key)) for key in keys])


# What an attack's own methods give, looked at before it is used: somebody else may have written them.


def require_labels(labels: object, observation: Observation) -> None:
    """Labels (R, n), or None where the attack optimises them.

    Raises:
        UsageError: they are something else.
    """
    if labels is None:
        return
    shape, classes = (observation.rows, observation.examples), observation.model.classes
    if not isinstance(labels, Tensor) or labels.dtype != torch.long or tuple(labels.shape) != shape:
        raise UsageError(f"labels() gives {_described(labels)}; let it give {shape} of torch.long, a row per victim")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UsageError(f"labels() gives {int(wrong[0])}, where there are {classes} classes; count them from 0")


def labels_of_starts(attack: "Attack", observation: Observation) -> Tensor | None:
    """Return what an attack says of labels at its starts; the first that it is asked.

    Raises:
        UsageError: it changes numbers little by little, and the observation is of texts.
    """
    if attack.reads == "images" and not attack.by_vectors and observation.model.vocabulary is not None:
        name = ATTACKS.name_of(type(attack)) or type(attack).__name__
        raise UsageError(
            f"attack {name!r} changes an image little by little, which a text cannot be; use --attack auto"
        )
    return attack.labels_of_starts(observation)


def require_start(position: object, rows: int) -> Tensor:
    """Positions (rows, D).

    Raises:
        UsageError: they are something else.
    """
    if not isinstance(position, Tensor) or position.dim() != 2 or len(position) != rows:
        raise UsageError(f"start() gives {_described(position)}; let it give a row of numbers for each of {rows} keys")
    return position


def _described(given: object) -> str:
    return (
        f"a tensor {tuple(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    )


__all__ = ["ATTACKS", "Attack", "Count", "Dummy", "NonNegative", "pixel_count", "reconstructing", "validated_attack"]


@dataclass(frozen=True)
class Dummy:
    """Dummy data of R rows: images (R, n, C, H, W) and targets, labels (R, n) or probabilities (R, n, K)."""

    images: Tensor
    targets: Tensor

    @property
    def shown(self) -> Tensor:
        """The images that gradients are computed of."""
        return self.images


@validated_attack
class Attack(Attacker):
    """Gradient matching: dummy images are optimised until their gradient looks like the observed one.

    Attributes:
        objective: ``l2`` or ``cosine`` distance between gradients.
        scale: ``raw`` compares them as they are; ``free`` ignores one unknown scale per clipping group; ``known_clip``
            clips the dummy's gradient as the defense is known to; ``auto`` is ``free`` where the observation is known
            to be clipped and ``raw`` elsewhere, so that clipping alone is never mistaken for protection.
        masked: leave coordinates whose observed value is exactly zero out of the comparison; ``auto`` does so where the
            defense is known to leave coordinates out, so that pruning alone is never mistaken for protection.
        init: scheme of the initial images, one of ``INITIALISATIONS``.
        label_rule: rule of :mod:`harness.attacks.labels`.
        restarts: independent starts per victim; the one with the smallest matching loss is kept.
        max_iterations: cap in outer iterations of the optimizer.
        tv: weight of total variation. box: project images onto [0, 1] after every step.
        loss_stop: stop below this loss, relative to max(1, squared norm of the target) for ``l2``; of an unrolled
            optimizer relative to the step that has the least share in the update.
        patience: after this many outer iterations give up a row whose best loss fell by less than ``patience_drop``
            in the last ``patience_window`` of them; 0 never gives up. A row whose loss is already below
            ``patience_floor`` times its first one is nearly there, not hopeless.
    """

    objective: Literal["l2", "cosine"] = "l2"
    scale: Literal["auto", "raw", "free", "known_clip"] = "auto"
    masked: Literal["auto", "yes", "no"] = "auto"
    init: str = "gauss"
    label_rule: str = "auto"
    restarts: Repeats = 1
    max_iterations: Count = 300
    tv: NonNegative = 0.0
    box: bool = False
    loss_stop: NonNegative = 1e-7
    patience: CountOrNone = 30
    patience_window: Count = 10
    patience_drop: NonNegative = 0.1
    patience_floor: NonNegative = 1e-5

    closed_form: ClassVar[bool] = False
    """Whether there is no loss to descend, and so none to stall on."""
    dealt: ClassVar[bool] = True
    """Whether it gains by processes that take a share of the victims each: not where it is over at once, or where its
    own threads take a victim each."""
    uses_labels: ClassVar[bool] = True
    """Whether labels matter to the images that come out: not where they are read off a layer."""
    standstill: ClassVar[tuple[int, float]] = (10, 1e-9)
    """A row that is not hopeless is finished when its best loss fell by no more than that share of it in that many
    outer iterations."""

    def optimizer(self) -> LBFGS | Adam:
        """The batched optimizer and its settings."""
        return LBFGS()

    def stages(self, observation: Observation) -> list[Stage]:
        """Return the losses that are descended one after the other; iterations add up to ``max_iterations``.

        ``observation`` holds rows that are read alike, see :func:`harness.attacks.stages.alike`.
        """
        if self.closed_form or self.objective not in RAW:
            return [Stage(self.max_iterations)]
        return stages_of(observation, self.max_iterations)

    def labels(self, observation: Observation) -> Tensor | None:
        """Inferred labels (R, n), or None where labels are optimised along with the images."""
        return infer_labels(observation, self.label_rule)

    @property
    def starts(self) -> int:
        """Most starts per victim."""
        return self.restarts

    def labels_of_starts(self, observation: Observation) -> Tensor | None:
        """Labels (R, starts, n), -1 where a start is left out; None where they are optimised along with the images."""
        labels = self.labels(observation)
        require_labels(labels, observation)
        return None if labels is None else labels[:, None].expand(-1, self.starts, -1)

    def read_as(self, observation: Observation) -> Lean | None:
        """Return what makes of rows what this attack reads in their place; None where it reads them as they are."""
        return None

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        """Initial positions (R, n*C*H*W, and more for other unknowns), one random stream per key."""
        shape = (observation.unknowns, *observation.model.image_shape)
        # Of all starts the best one where the loss is a hard one; what was chosen otherwise stays.
        hard = self.init == "gauss" and (is_unrolled(observation) or len(self.stages(observation)) > 1)
        return initial_images("pattern-1/4" if hard else self.init, keys, shape).flatten(1)

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        """Reads positions as images and targets.

        Raises:
            UsageError: an attack that infers no labels does not read them here either.
        """
        if labels is None:
            raise UsageError("labels() gives None; let it infer them, or let dummy() read them from the position")
        images = position.reshape(len(position), -1, *observation.model.image_shape)
        return Dummy(observation.in_places(images), labels)

    def position(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """Positions (R, D) that :meth:`dummy` reads as images (R, n, C, H, W) of labels (R, n); None where it has none.

        None are those in closed form, of several losses that are descended, and of other unknowns than images.
        """
        plain = type(self).dummy is Attack.dummy and self.reads == "images" and not self.closed_form
        return images.flatten(1) if plain and len(self.stages(observation)) == 1 else None

    def matching(self, observation: Observation, dummy: Dummy) -> Tensor:
        """Matching loss (R,): the only number by which iterates and restarts are chosen."""
        candidate = dummy_gradient(observation, dummy.shown, dummy.targets, self.clips(observation))
        return self.mismatch(observation, candidate, dummy)

    def clips(self, observation: Observation) -> bool:
        """Return whether dummies' gradients are clipped as the defense is known to clip."""
        return self.scale == "known_clip"

    def solved_rows(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return which rows (R,) are finished at positions (R, D) whatever their loss; None where no row can be."""
        return None

    def loss_of_shown(self, observation: Observation, dummy: Dummy) -> Tensor | None:
        """Return losses (R,) by which starts are chosen in the end; None for the best matching losses."""
        return None

    def mismatch(self, observation: Observation, candidate: Tensor, dummy: Dummy) -> Tensor:
        """The matching loss (R,) of dummies whose gradients are ``candidate`` (R, P)."""
        return self.distance(observation, candidate)

    def distance(self, observation: Observation, candidate: Tensor) -> Tensor:
        """Distance (R,) of candidate gradients (R, P) from the observed ones, by ``objective`` and ``scale``."""
        if self.masks(observation):
            candidate = observed_only(candidate, observation.target)
        free = self.scale == "free" or (self.scale == "auto" and observation.clipping is not None)
        matching, target = (SCALE_FREE if free else RAW)[self.objective], observation.target
        if (blur := blur_of(observation)) is not None:
            layout = observation.model.layout
            return signs(candidate, target, layout.sizes * (target.shape[1] // layout.total), blur)
        if observation.certainty is not None:
            candidate = excused(candidate, observation)
            candidate, target = candidate * observation.certainty, target * observation.certainty
        return matching(candidate, target, observation.clipping_groups)

    def masks(self, observation: Observation) -> bool:
        """Return whether observed zeros count as left out."""
        return observation.sparse if self.masked == "auto" else self.masked == "yes"

    def measures(self, observation: Observation, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return numbers of this attack's own, (R,) each by its name: metrics in documents, tables, reports and cards.

        Args:
            observation: R rows.
            images: (R, n, C, H, W), what it made of them.
            labels: (R, n).
        """
        return {}

    def effort(self, observation: Observation) -> int:
        """Gradients that were computed for each row before the start was looked at."""
        return 0

    def penalty(self, observation: Observation, dummy: Dummy, victims: Tensor) -> Tensor | float:
        """Return the term added to the matching loss (R,); ``victims`` (R,) says which rows attack the same victim."""
        if blur_of(observation) is not None:
            outside = dummy.images - dummy.images.clamp(0.0, 1.0)
            return max(self.tv, SIGNS_TV) * total_variation(dummy.images) + SIGNS_BOX * outside.square().mean(
                (1, 2, 3, 4)
            )
        return self.tv * total_variation(dummy.images) if self.tv else 0.0

    def after_step(self, position: Tensor, keys: list[tuple[int | str, ...]], iteration: int) -> Tensor:
        """Positions after an optimizer step, projected onto what the attack allows."""
        return position.clamp(0.0, 1.0) if self.box else position

    def stop_below(self, observation: Observation) -> Tensor:
        """Matching loss (R,) at which a row is finished."""
        scale = torch.ones_like(observation.target[:, 0])
        if self.objective == "l2":
            scale = observation.target.square().sum(1).clamp_min(1.0) * least_share(observation) ** 2
        return self.loss_stop * scale


def pixel_count(observation: Observation) -> int:
    """Number of image coordinates of a row's position."""
    return observation.unknowns * math.prod(observation.model.image_shape)


def reconstructing(attack: Attacker) -> Attack:
    """Return the attacker, typed as one that reconstructs.

    Raises:
        UsageError: it only identifies.
    """
    if not isinstance(attack, Attack):
        raise UsageError("it reconstructs nothing, which is needed here; use --attack cpl or another that does")
    return attack


# What attacks have in common that compute their images and descend no loss.


@validated_attack
class ClosedForm(Attack):
    """An author writes ``solved``; there is one candidate, and nothing to choose."""

    max_iterations: Count = 1
    box: Literal[False] = False
    closed_form: ClassVar[bool] = True
    dealt: ClassVar[bool] = False

    def solved(self, observation: Observation) -> Tensor:
        """The images (R, n*D); what is no number becomes 0. No row may depend on the others.

        Raises:
            UsageError: it is impossible for what was read.
        """
        raise NotImplementedError

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        require_gradients(observation)
        found: object = self.solved(observation)
        wanted = len(observation.target), pixel_count(observation)
        if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
            raise UsageError(
                f"solved() gives {_described(found)}; let it give a tensor {wanted}, of rows of all pixels"
            )
        return found.nan_to_num(0.0, 0.0, 0.0)

    def labels_of_starts(self, observation: Observation) -> Tensor | None:
        """Return the labels of :meth:`Attack.labels_of_starts`, but do not compute them at length where the attack is
        impossible."""
        require_gradients(observation)
        return Attack.labels_of_starts(self, observation)

    def effort(self, observation: Observation) -> int:
        """The gradient that was read is what it is computed from."""
        return 1

    def matching(self, observation: Observation, dummy: Dummy) -> Tensor:
        """0 for every candidate: there is one, and an author need not say how well it fits. No number where what was
        read is none."""
        return 0.0 * (dummy.images.flatten(1).sum(1) + observation.target.sum(1))
